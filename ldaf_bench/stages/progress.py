"""Progress: a bar for each thing under way on a terminal, plain lines elsewhere. It sees what trials report."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ldaf_bench.messages import counted, duration, say

LINE_SECONDS = 60
"""Where there is no terminal, a long training says this often how far it is."""
FETCH_SECONDS = 10
"""And a download this often."""


class View:
    """Rows with bars while it is entered, on a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn())
        last = (TextColumn("{task.fields[says]}"), TimeElapsedColumn())
        self.bars = Progress(*columns, *last, console=console, transient=True)
        self.rows: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def move(self, row: str, done: int, total: int | None, says: str = "") -> None:
        """Move the row's bar; a row that is not there begins."""
        if row not in self.rows:
            self.rows[row] = self.bars.add_task(row, total=total, says=says)
        self.bars.update(self.rows[row], completed=done, total=total, says=says)

    def drop(self, row: str) -> None:
        """End a row."""
        if row in self.rows:
            self.bars.remove_task(self.rows.pop(row))

    def say(self, sentence: str) -> None:
        """A line of its own, above the bars."""
        say(self.console, sentence)


class _Pace(NamedTuple):
    """How far a network is: images that are left, and images per second."""

    left: float
    rate: float


class TrainingView:
    """The networks of a plan: a row for each that is under way, and one for all with the time that is left."""

    def __init__(self, view: View, num_networks: int, to_train: Mapping[int, int]) -> None:
        self.view, self.num_networks, self.images = view, num_networks, to_train
        self.paces = {number: _Pace(images, 0.0) for number, images in to_train.items()}
        """Of every network that is not trained yet, by its number; at first the images that it will see."""
        self.trained = num_networks - len(to_train)
        self.last_line: dict[int, float] = {}

    def show(self, number: int, told: Mapping[str, Any]) -> None:
        """What the trial of a network reported."""
        row = f"network {number}"
        if "says" in told:
            self.view.say(told["says"])
        if "failure" in told:
            self.view.say(f"Network {number} of {self.num_networks} failed: {told['failure']}")
        if "trained" in told:
            self._ended(number, told)
        elif "digest" in told:
            self.view.move(row, told["shards"], told["num_shards"], told["digest"])
        elif "step" in told:
            rate = told["images_per_second"]
            left = self.images[number] * (1 - told["step"] / told["num_steps"])
            self.paces[number] = _Pace(left, rate)
            place = f"network {number}/{self.num_networks}, epoch {told['epoch']}/{told['epochs']}"
            says = f"loss {told['loss']:.3f}  accuracy {told['accuracy']:.1%}  {rate:.0f} images/s"
            eta = f"ETA {duration(left / rate)}" if rate else "ETA ?"
            self.view.move(row, told["step"], told["num_steps"], f"{place}  {says}  {eta}")
            self.view.move("networks", self.trained, self.num_networks, f"ETA {self.eta}")
            now = time.monotonic()
            if not self.view.console.is_terminal and now - self.last_line.setdefault(number, now) >= LINE_SECONDS:
                self.last_line[number] = now
                done = f"{told['step'] / told['num_steps']:4.0%} done"
                self.view.say(f"{place}  {done}  {says}  {eta}, all networks {self.eta}")

    @property
    def eta(self) -> str:
        """Until all networks are trained, at the speed of those that are trained now."""
        rate = sum(pace.rate for pace in self.paces.values())
        return duration(sum(pace.left for pace in self.paces.values()) / rate) if rate else "?"

    def _ended(self, number: int, told: Mapping[str, Any]) -> None:
        """A network is trained: one line for all of its epochs."""
        self.dropped(number)
        self.trained += 1
        self.view.say(
            f"Network {number} of {self.num_networks} is trained: {counted(told['trained'], 'epoch')}, loss "
            f"{told['loss']:.3f}, accuracy {told['accuracy']:.1%}, {told['images_per_second']:.0f} images/s, "
            f"{duration(told['seconds'])}."
        )

    def dropped(self, number: int) -> None:
        """A network ended, one way or another."""
        self.paces.pop(number, None)
        self.view.drop(f"network {number}")
        if not self.paces:
            self.view.drop("networks")


class CountView:
    """How many of some things are done."""

    def __init__(self, view: View, what: str) -> None:
        self.view, self.what, self.shown = view, what, 0
        self.begun: tuple[float, int] | None = None
        """When the first of them was done, and how many were then: before it, processes started."""

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


class FetchView:
    """How much of a data set has arrived, while it is entered: a bar on a terminal, elsewhere a line now and then."""

    def __init__(self, console: Console, name: str, root: Path) -> None:
        self.view, self.name, self.root = View(console), name, root
        self.ended = threading.Event()
        self.watching = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self.view.__enter__()
        self.watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.watching.join()
        self.view.__exit__()

    def say(self, sentence: str) -> None:
        """What `fetch` says."""
        self.view.say(f"{self.name}: {sentence}")

    def _watch(self) -> None:
        begin = last = time.monotonic()
        while not self.ended.wait(1):
            arrived = bytes_in_work(self.root, self.name)
            megabytes, now = f"{arrived / 1e6:.0f} MB", time.monotonic()
            if arrived:
                self.view.move(f"fetching {self.name}", arrived >> 20, None, megabytes)
            if arrived and not self.view.console.is_terminal and now - last >= FETCH_SECONDS:
                last = now
                self.view.say(f"{self.name}: {megabytes} after {duration(now - begin)}.")


def bytes_in_work(root: Path, name: str) -> int:
    """Bytes in the temporary folders in which data sets are fetched; files may go while they are counted."""
    total = 0
    for path in root.glob(f".{name}.*/**/*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total
