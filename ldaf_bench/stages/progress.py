"""Progress: a bar on a terminal, plain lines elsewhere. Workers post to a small actor, the driver looks at it."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Self, TypeVar

import ray
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

POLL_SECONDS = 0.5
LINE_SECONDS = 60
"""Where there is no terminal, a long training says this often how far it is, also within an epoch."""
Result = TypeVar("Result")


@ray.remote(num_cpus=0)
class Board:
    """The latest word of a run."""

    def __init__(self) -> None:
        self.word: dict[str, Any] = {}

    def post(self, word: dict[str, Any]) -> None:
        """Replace it."""
        self.word = word

    def read(self) -> dict[str, Any]:
        """What was posted last."""
        return self.word


def duration(seconds: float) -> str:
    """1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class View(ABC):
    """A bar while it is entered, on a terminal."""

    def __init__(self, console: Console, what: str, *columns: ProgressColumn, **fields: Any) -> None:
        self.console = console
        first = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self.bar = Progress(*first, *columns, console=console, transient=True)
        self.task = self.bar.add_task(what, total=None, **fields)

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    @abstractmethod
    def show(self, word: dict[str, Any]) -> None:
        """Move the bar to where the word says."""


class TrainingView(View):
    """Shows the words that `stages.train` posts."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.fields[says]}"), TimeElapsedColumn(), TextColumn("ETA {task.fields[eta]}"))
        super().__init__(console, "waiting for workers", *columns, says="", eta="?")
        self.shown, self.last_line = -1, time.monotonic()

    def show(self, word: dict[str, Any]) -> None:
        """Move the bar; print a line for every epoch that ended since the last word, or that takes long."""
        if "step" not in word:
            return
        rate, batch = word["images_per_second"], word["batch_size"]
        eta = duration((word["num_steps"] - word["step"]) * batch / rate) if rate else "?"
        running = word["curve"][-1] if word["curve"] else {"epoch": 0, "loss": 0.0, "accuracy": 0.0}
        self.bar.update(
            self.task,
            description=f"epoch {running['epoch'] + 1}/{word['epochs']}",
            total=word["num_steps"],
            completed=word["step"],
            says=f"loss {running['loss']:.3f}  accuracy {running['accuracy']:.1%}  {rate:.0f} images/s",
            eta=eta,
        )
        if not self.console.is_terminal and time.monotonic() - self.last_line >= LINE_SECONDS:
            self.last_line = time.monotonic()
            place = f"epoch {running['epoch'] + 1:3}/{word['epochs']}  {word['step'] / word['num_steps']:4.0%} done"
            self.console.print(f"{place}  {rate:6.0f} images/s  ETA {eta}", highlight=False)
        for row in word["curve"]:
            if row["epoch"] > self.shown and row["whole"]:
                self.shown, self.last_line = row["epoch"], time.monotonic()
                # The bar redraws itself below what is printed above it.
                self.console.print(
                    f"epoch {row['epoch'] + 1:3}/{word['epochs']}  loss {row['loss']:.3f}  accuracy "
                    f"{row['accuracy']:6.1%}  {row['images_per_second']:6.0f} images/s  {duration(row['seconds'])}",
                    highlight=False,
                )


class CountView(View):
    """Shows how many of some things are done."""

    def __init__(self, console: Console, what: str) -> None:
        super().__init__(console, what, TimeElapsedColumn(), TimeRemainingColumn())
        self.what, self.shown = what, 0

    def show(self, word: dict[str, Any]) -> None:
        """Move the bar; elsewhere, a line for every tenth of the work."""
        done, total, failed = word["done"], word["total"], word["failed"]
        says = self.what + (f" ({failed} failed)" if failed else "")
        self.bar.update(self.task, description=says, total=total, completed=done)
        if not self.console.is_terminal and done > self.shown and (done * 10 // total > self.shown * 10 // total):
            self.console.print(f"{says}: {done} of {total}", markup=False, highlight=False)
            self.shown = done


def follow(work: Callable[[], Result], board: Any, view: View) -> tuple[Result, dict[str, Any]]:
    """The result of `work` and the last word on the board, which is looked at every half second meanwhile.

    `work` runs in a thread of its own because Ctrl-C arrives in the main one, where Ray would answer it with exit
    code 0.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    word: dict[str, Any] = {}
    with view:
        threading.Thread(target=run, daemon=True).start()
        while True:
            done = future.done()
            with contextlib.suppress(ray.exceptions.RayError):  # a lost board costs the view, not the training
                word = ray.get(board.read.remote(), timeout=10)
                view.show(word)
            if done:
                return future.result(), word
            wait([future], POLL_SECONDS)
