"""One report of a whole sweep for many tests: they only look at it."""

import pytest

from ldaf_bench.report import folder
from ldaf_bench.report.folder import report
from ldaf_bench.report.records import read
from ldaf_bench.report.style import THEME
from tests.report import synthetic

PLAN = {
    "suite": {
        "name": "digits",
        "seed": [0, 1, 2],
        "data": {"dataset": "digits"},
        "reference": [{"name": "elsewhere", "source": "A paper, Table 1", "certificate": 0.0636, "epsilon": 0.01}],
    },
    "integrations": [f"integration{i}" for i in range(500)],
    "done": True,
}


@pytest.fixture(scope="session", autouse=True)
def quick_files():
    """Coarse images, and fonts that take a third of the time: no test looks that closely."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(THEME, "pdf.fonttype", 3)
        patch.setattr(folder, "DPI", 60)
        yield


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    rows = [*synthetic.results(), synthetic.failure()]
    return synthetic.write(tmp_path_factory.mktemp("sweep"), rows, plan=PLAN)


@pytest.fixture(scope="session")
def records(sweep):
    return read([sweep])


@pytest.fixture(scope="session")
def reported(sweep, tmp_path_factory):
    out = tmp_path_factory.mktemp("reported")
    report([sweep], out)
    return out


@pytest.fixture(scope="session")
def nasty(tmp_path_factory):
    where = tmp_path_factory.mktemp("nasty") / "<b>a&b"
    deep = {synthetic.NASTY[0]: [synthetic.NASTY[2], {synthetic.UNICODE: None}]}
    names = dict(zip(("mc", "qmc", "rqmc"), synthetic.NASTY, strict=True)) | {"conditional": synthetic.UNICODE}
    names |= {"bound": synthetic.NASTY[0], "loss": synthetic.UNICODE}
    lines = synthetic.curves(synthetic.nasty())
    lines = [line | {"series": names.get(line["series"], line["series"])} for line in lines]
    synthetic.write(where, synthetic.nasty(), lines, plan=deep)
    report([where], where)
    return where
