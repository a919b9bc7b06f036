"""Progress: a bar for each thing under way on a terminal, plain lines elsewhere. Safe to use from several threads.

Workers post words to the desk; the driver's thread that waits for them reads them there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, Self, TypeVar

import ray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ldaf_bench.messages import duration, say
from ldaf_bench.stages.desk import Word
from ldaf_bench.stages.session import nodes_that_leave

POLL_SECONDS = 0.5
LINE_SECONDS = 60
"""Where there is no terminal, a long training says this often how far it is."""
Result = TypeVar("Result")


class View:
    """Rows with bars while it is entered, on a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
        last = (TextColumn("{task.fields[says]}"), TimeElapsedColumn())
        self.bars = Progress(*columns, *last, console=console, transient=True)
        self.rows: dict[str, TaskID] = {}
        self.lock = threading.RLock()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def move(self, row: str, done: int, total: int | None, says: str = "") -> None:
        """Move the row's bar; a row that is not there begins."""
        with self.lock:
            if row not in self.rows:
                self.rows[row] = self.bars.add_task(row, total=total, says=says)
            self.bars.update(self.rows[row], completed=done, total=total, says=says)

    def drop(self, row: str) -> None:
        """End a row."""
        with self.lock:
            if row in self.rows:
                self.bars.remove_task(self.rows.pop(row))

    def say(self, sentence: str) -> None:
        """A line of its own, above the bars."""
        with self.lock:
            say(self.console, sentence)


class _Pace(NamedTuple):
    """How far a network is: images that are left, and images per second."""

    left: float
    rate: float


class TrainingView:
    """The networks of a plan: a row for each that is under way, and one for all with the time that is left."""

    def __init__(self, view: View, num_networks: int, to_train: Mapping[int, int]) -> None:
        self.view, self.num_networks = view, num_networks
        self.paces = {number: _Pace(images, 0.0) for number, images in to_train.items()}
        """Of every network that is not trained yet, by its number; at first the images that it will see."""
        self.trained = num_networks - len(to_train)
        self.last_line: dict[int, float] = {}

    def show(self, number: int, word: Word) -> None:
        """What the workers of a network posted last."""
        with self.view.lock:
            self._show(number, word)

    def _show(self, number: int, word: Word) -> None:
        if "step" not in word:
            return
        rate, row = word["images_per_second"], word["curve"][-1]
        left = (word["num_steps"] - word["step"]) * word["batch_size"]
        self.paces[number] = _Pace(left, rate)
        place = f"network {number}/{self.num_networks}, epoch {row['epoch'] + 1}/{word['epochs']}"
        says = f"loss {row['loss']:.3f}  accuracy {row['accuracy']:.1%}  {rate:.0f} images/s"
        eta = f"ETA {duration(left / rate)}" if rate else "ETA ?"
        self.view.move(f"network {number}", word["step"], word["num_steps"], f"{place}  {says}  {eta}")
        self.view.move("networks", self.trained, self.num_networks, f"ETA {self.eta}")
        now = time.monotonic()
        if not self.view.console.is_terminal and now - self.last_line.setdefault(number, now) >= LINE_SECONDS:
            self.last_line[number] = now
            done = f"{word['step'] / word['num_steps']:4.0%} done"
            self.view.say(f"{place}  {done}  {says}  {eta}, all networks {self.eta}")

    @property
    def eta(self) -> str:
        """Until all networks are trained, at the speed of those that are trained now."""
        rate = sum(pace.rate for pace in self.paces.values())
        return duration(sum(pace.left for pace in self.paces.values()) / rate) if rate else "?"

    def ended(self, number: int, curve: list[dict[str, Any]]) -> None:
        """A network is trained: one line for all of its epochs."""
        with self.view.lock:
            self.dropped(number)
            self.trained += 1
            last, seconds = curve[-1], sum(row["seconds"] for row in curve)
            epochs = f"{len(curve)} epoch{'s' if len(curve) != 1 else ''}"
            self.view.say(
                f"Network {number} of {self.num_networks} is trained: {epochs}, loss {last['loss']:.3f}, accuracy "
                f"{last['accuracy']:.1%}, {last['images_per_second']:.0f} images/s, {duration(seconds)}."
            )

    def dropped(self, number: int) -> None:
        """A network ended, one way or another."""
        with self.view.lock:
            self.paces.pop(number, None)
            self.view.drop(f"network {number}")
            if not self.paces:
                self.view.drop("networks")


class CountView:
    """How many of some things are done."""

    def __init__(self, view: View, what: str) -> None:
        self.view, self.what, self.shown = view, what, 0
        self.begun: tuple[float, int] | None = None
        """When the first of them was done, and how many were then: before it, they may have waited for trainings."""

    def show(self, done: int, total: int, failed: int = 0) -> None:
        """Move the bar; elsewhere, a line for every tenth of the work."""
        says = f"({failed} failed)  " if failed else ""
        now, eta = time.monotonic(), "?"
        self.begun = self.begun or ((now, done) if done else None)
        if self.begun and done > self.begun[1]:
            eta = duration((now - self.begun[0]) / (done - self.begun[1]) * (total - done))
        self.view.move(self.what, done, total, f"{says}ETA {eta}")
        if not self.view.console.is_terminal and done > self.shown and done * 10 // total > self.shown * 10 // total:
            self.view.say(f"{self.what}{f' ({failed} failed)' if failed else ''}: {done} of {total}  ETA {eta}")
            self.shown = done


def in_thread(work: Callable[[], Result]) -> Future[Result]:
    """The result to come of `work`, which runs in a thread that ends with the process.

    Ctrl-C arrives in the main thread, where Ray would answer it with exit code 0.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def follow(work: Callable[[], Result], desk: Any, run: str, show: Callable[[Word], None]) -> tuple[Result, Word]:
    """The result of a training's work and its last word, which is asked for every half second meanwhile.

    If a node of the cluster is about to leave, the workers are asked for a checkpoint.
    """
    word: Word = {}
    leaving: set[str] = set()
    future = in_thread(work)
    while True:
        done = future.done()
        with contextlib.suppress(ray.exceptions.RayError):  # a lost desk costs the view, not the training
            if new := nodes_that_leave() - leaving:
                leaving |= new
                desk.urge.remote(run)
            word = ray.get(desk.read.remote(run), timeout=10)
            show(word)
        if done:
            return future.result(), word
        wait([future], POLL_SECONDS)
