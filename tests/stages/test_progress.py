"""What people see while a prior trains: a bar on a terminal, plain lines elsewhere."""

import io

import pytest
from rich.console import Console

from ldaf_bench.stages.progress import TrainingView, duration


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


def test_a_terminal_shows_epoch_loss_accuracy_rate_and_the_time_that_is_left():
    text = shown([word(15, 1)], force_terminal=True, force_interactive=True)
    for part in ("epoch 2/4", "15/40", "loss 1.250", "accuracy 50.0%", "200 images/s", "ETA 0:12"):
        assert part in text


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.4, "1:05"), (3725, "1:02:05")])
def test_durations_read_like_a_clock(seconds, text):
    assert duration(seconds) == text
