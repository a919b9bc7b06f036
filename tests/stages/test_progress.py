"""What people see while networks train and posteriors are fitted: bars on a terminal, plain lines elsewhere."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from ldaf_bench.messages import duration
from ldaf_bench.stages import progress
from ldaf_bench.stages.progress import LINE_SECONDS, CountView, TrainingView, View

IMAGES = 4000
"""That a network looks at: 40 steps of 100."""


def word(step, epoch=0):
    return {
        "step": step, "num_steps": 40, "epoch": epoch + 1, "epochs": 4, "images_per_second": 200.0, "loss": 1.25,
        "accuracy": 0.5, "seconds": 61.0,
    }  # fmt: skip


class Shown:
    """A view whose output can be read."""

    def __init__(self, to_train=(1, 2, 3), **options):
        self.output = io.StringIO()
        self.view = View(Console(file=self.output, width=200, **options))
        self.networks = TrainingView(self.view, 3, dict.fromkeys(to_train, IMAGES))

    def lines(self):
        """What was printed since this was asked last."""
        text = self.output.getvalue()
        self.output.seek(0)
        self.output.truncate()
        return text.splitlines()


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when it is told to."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_elsewhere_a_training_says_once_a_minute_how_far_it_is_also_in_its_first_epoch(clock):
    shown = Shown()

    def lines_after(seconds, number, one):
        clock.now += seconds
        shown.networks.show(number, one)
        return shown.lines()

    assert LINE_SECONDS == 60
    assert lines_after(5, 1, {}) == []
    assert lines_after(0, 1, word(1)) == []
    assert lines_after(59, 1, word(2)) == []
    # 38 steps of 100 images are left of the first network, at 200 images/s; and all of the two others at that speed
    says = "loss 1.250  accuracy 50.0%  200 images/s"
    assert lines_after(1, 1, word(2)) == [
        f"network 1/3, epoch 1/4    5% done  {says}  ETA 0:19, all networks 0:59",
    ]
    # Every network has its own minute, and two at a time are twice as fast.
    assert lines_after(30, 2, word(20, 2)) == []
    assert lines_after(30, 1, word(4)) == [f"network 1/3, epoch 1/4   10% done  {says}  ETA 0:18, all networks 0:24"]
    assert lines_after(30, 2, word(30, 3)) == [
        f"network 2/3, epoch 4/4   75% done  {says}  ETA 0:05, all networks 0:22"
    ]


def test_a_network_that_is_trained_is_one_line():
    shown = Shown()
    shown.networks.show(2, word(40, 3))
    shown.networks.show(2, {**word(40, 3), "trained": 2, "seconds": 122.0})
    assert shown.lines() == [
        "Network 2 of 3 is trained: 2 epochs, loss 1.250, accuracy 50.0%, 200 images/s, 2:02.",
    ]
    assert shown.networks.trained == 1
    assert set(shown.networks.paces) == {1, 3}


def test_a_terminal_has_bars_with_all_there_is_to_say_and_no_line_a_minute(clock):
    shown = Shown(force_terminal=True, force_interactive=True)
    with shown.view:
        shown.networks.show(1, word(15, 1))
        clock.now += 1000
        shown.networks.show(1, word(15, 1))
        shown.view.bars.refresh()
        text = "\n".join(shown.lines())
    for part in ("15/40", "network 1/3, epoch 2/4", "loss 1.250", "accuracy 50.0%", "200 images/s", "ETA 0:12", "0/3"):
        assert part in text
    assert "done" not in text


def test_what_a_trial_has_to_say_is_a_line_and_a_digest_a_row():
    shown = Shown()
    shown.networks.show(1, {"says": "It goes on."})
    shown.networks.show(1, {"digest": "ldaf, test part", "shards": 3, "num_shards": 20})
    assert shown.lines() == ["It goes on."]
    assert set(shown.view.rows) == {"network 1"}


def test_rows_end_with_what_they_are_about():
    shown = Shown(to_train=(3,))
    shown.networks.show(3, word(15, 1))
    assert set(shown.view.rows) == {"network 3", "networks"}
    shown.networks.dropped(3)
    assert not shown.view.rows


def test_elsewhere_every_tenth_of_a_sweep_is_a_line_that_says_what_failed(clock):
    shown = Shown()
    posteriors = CountView(shown.view, "posteriors")
    for done in range(31):
        posteriors.show(done, 30, done // 20)
        clock.now += 2 if done else 3600  # the first ones wait for a training, which says nothing about the others
    lines = shown.lines()
    assert lines[0] == "posteriors: 3 of 30  ETA 0:54"
    assert lines[-1] == "posteriors (1 failed): 30 of 30  ETA 0:00"
    assert len(lines) == 10


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.4, "1:05"), (3725, "1:02:05")])
def test_durations_read_like_a_clock(seconds, text):
    assert duration(seconds) == text
