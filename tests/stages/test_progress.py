"""What people see while a network trains: a bar on a terminal, plain lines elsewhere."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from ldaf_bench.stages import progress
from ldaf_bench.stages.progress import LINE_SECONDS, CountView, TrainingView, duration


def word(step, epochs_done, loss=1.25):
    curve = [
        {
            "epoch": k,
            "loss": loss,
            "accuracy": 0.5,
            "seconds": 61.0,
            "images_per_second": 200.0,
            "whole": k < epochs_done,
        }
        for k in range(epochs_done + 1)
    ]
    return {
        "step": step, "num_steps": 40, "epochs": 4, "batch_size": 100, "images_per_second": 200.0, "curve": curve,
    }  # fmt: skip


def shown(words, **options):
    output = io.StringIO()
    with TrainingView(Console(file=output, width=120, **options)) as view:
        for one in words:
            view.show(one)
    return output.getvalue()


def test_elsewhere_every_epoch_is_one_plain_line_even_if_a_word_was_missed():
    text = shown([{}, word(3, 0), word(10, 1), word(12, 1), word(35, 3)])
    assert text.splitlines() == [
        f"epoch   {k}/4  loss 1.250  accuracy  50.0%     200 images/s  1:01" for k in (1, 2, 3)
    ]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_elsewhere_an_epoch_that_takes_long_says_once_a_minute_how_far_it_is(monkeypatch):
    clock, output = Clock(monkeypatch), io.StringIO()
    view = TrainingView(Console(file=output, width=120))

    def lines_after(seconds, one):
        output.seek(0)
        output.truncate()
        clock.now += seconds
        view.show(one)
        return output.getvalue().splitlines()

    assert LINE_SECONDS == 60
    assert lines_after(59.0, word(1, 0)) == []
    assert lines_after(1.0, word(2, 0)) == ["epoch   1/4    5% done     200 images/s  ETA 0:19"]
    assert lines_after(0.5, word(3, 0)) == []
    assert lines_after(60.0, word(4, 0)) == ["epoch   1/4   10% done     200 images/s  ETA 0:18"]
    # The end of an epoch is a line too, and the next minute begins with it.
    assert lines_after(30.0, word(10, 1)) == ["epoch   1/4  loss 1.250  accuracy  50.0%     200 images/s  1:01"]
    assert lines_after(59.0, word(11, 1)) == []
    assert lines_after(1.0, word(12, 1)) == ["epoch   2/4   30% done     200 images/s  ETA 0:14"]
    assert lines_after(3600.0, {}) == []


def test_a_terminal_has_its_bar_and_no_line_a_minute(monkeypatch):
    clock, output = Clock(monkeypatch), io.StringIO()
    view = TrainingView(Console(file=output, width=120, force_terminal=True))
    clock.now += 1000
    view.show(word(3, 0))
    assert output.getvalue() == ""


def test_elsewhere_every_tenth_of_a_sweep_is_a_line_that_says_what_failed():
    output = io.StringIO()
    with CountView(Console(file=output, width=120), "posteriors") as view:
        for done in range(31):
            view.show({"done": done, "total": 30, "failed": done // 20})
    lines = output.getvalue().splitlines()
    assert lines[0] == "posteriors: 3 of 30"
    assert lines[-1] == "posteriors (1 failed): 30 of 30"
    assert len(lines) == 10


def test_a_terminal_shows_epoch_loss_accuracy_rate_and_the_time_that_is_left():
    text = shown([word(15, 1)], force_terminal=True, force_interactive=True)
    for part in ("epoch 2/4", "15/40", "loss 1.250", "accuracy 50.0%", "200 images/s", "ETA 0:12"):
        assert part in text


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.4, "1:05"), (3725, "1:02:05")])
def test_durations_read_like_a_clock(seconds, text):
    assert duration(seconds) == text
