"""The page in a real browser: Debian's chromium, driven by playwright. Skipped where either is missing."""

import os
import shutil

import pytest

from ldaf_bench.report.figures import FIGURES

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BINARY is None:
    if os.environ.get("LDAF_BENCH_REQUIRE_BROWSER"):
        raise RuntimeError("There is no Chromium, but the browser tests are required here: `apt-get install chromium`.")
    pytest.skip("no chromium on this machine: `apt-get install chromium` to test the page", allow_module_level=True)
api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `pip install playwright`")

NUMBERS = "#table-certificates tbody tr:not([hidden]) td:nth-child({})"


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BINARY, args=["--disable-gpu"])
        yield found
        found.close()


@pytest.fixture(scope="module", params=["sweep", "nasty"])
def opened(request, browser, reported, nasty):
    """A page at the width of a phone, with everything that it complained about and asked for."""
    folder = {"sweep": reported, "nasty": nasty}[request.param]
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.complaints, page.asked = [], []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("request", lambda asked: page.asked.append(asked.url))
    page.on("dialog", lambda dialog: page.complaints.append(dialog.message))
    page.goto((folder / "report.html").as_uri())
    yield page
    page.close()


def header(page, table):
    return page.eval_on_selector_all(f"#table-{table} th", "all => all.map(th => th.textContent)")


def test_no_error_no_request_and_nothing_injected(opened):
    assert opened.complaints == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in opened.asked if url.startswith("file:")]) == 1
    assert opened.evaluate("window.injected") is None
    assert opened.locator("img").count() > 0
    assert opened.evaluate("[...document.images].every(image => image.complete && image.naturalWidth >= 300)")


def test_no_horizontal_scrolling_on_a_phone(opened):
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360
    wide = opened.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll') && "
        "e.getBoundingClientRect().right > 361).map(e => e.tagName)"
    )
    assert wide == []


def test_a_click_sorts_and_another_turns_round(opened):
    name = "certificate (%)"
    place = header(opened, "certificates").index(name) + 1
    button = opened.locator(f"#table-certificates th:nth-child({place}) button")

    def values():
        return [
            float(key) for key in opened.eval_on_selector_all(NUMBERS.format(place), "a => a.map(t => t.dataset.key)")
        ]

    before = values()
    button.click()
    assert values() == sorted(before)
    assert opened.locator(f"#table-certificates th:nth-child({place})").get_attribute("aria-sort") == "ascending"
    # By the keyboard too.
    button.focus()
    opened.keyboard.press("Enter")
    assert values() == sorted(before, reverse=True)
    assert opened.locator("#table-certificates th[aria-sort]").count() == 1
    assert opened.locator(f"#table-certificates th:nth-child({place})").get_attribute("aria-sort") == "descending"


def test_names_are_sorted_too(opened):
    place = header(opened, "certificates").index("bound") + 1
    opened.locator(f"#table-certificates th:nth-child({place}) button").click()
    names = opened.eval_on_selector_all(NUMBERS.format(place), "a => a.map(t => t.textContent)")
    assert names == sorted(names)


def test_the_filter_keeps_rows_with_all_words(opened):
    section = opened.locator("#certificates")
    rows = section.locator("tbody tr:not([hidden])")
    total = rows.count()
    section.locator("input").fill("KL_exact 0.05")
    status = section.locator("[role=status]")
    api.expect(status).not_to_be_empty()
    shown = rows.all_inner_texts()
    assert 0 < len(shown) < total
    assert all("kl_exact" in row and "0.05" in row for row in shown)
    assert status.inner_text() == f"{len(shown)} of {total} rows"
    section.locator("input").fill("")
    api.expect(status).to_be_empty()
    assert rows.count() == total


def test_without_javascript_everything_can_be_read(browser, reported):
    context = browser.new_context(java_script_enabled=False, color_scheme="dark")
    page = context.new_page()
    page.goto((reported / "report.html").as_uri())
    assert page.locator("#table-comparison tbody tr").count() > 10
    assert page.locator("button, input").count() == 0
    assert page.locator("figure img").count() == len(FIGURES)
    context.close()


def test_dark_and_print_styles_are_there(browser, reported):
    page = browser.new_page(color_scheme="dark")
    page.goto((reported / "report.html").as_uri())
    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(colour) == "rgb(20, 24, 28)"
    page.emulate_media(media="print", color_scheme="light")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflow") == "visible"
    page.close()
