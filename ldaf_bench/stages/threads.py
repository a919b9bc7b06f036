"""Some work for each of many things, a few at a time, in threads that end with the process."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads(Generic[Item, Result]):
    """`work` for every item, at most so many at a time. The main thread asks what has ended."""

    def __init__(self, work: Callable[[Item], Result], items: Sequence[Item], at_once: int) -> None:
        self._work = work
        self._waiting: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[Item, Future[Result]]] = queue.SimpleQueue()
        for item in items:
            self._waiting.put(item)
        self.left = len(items)
        """Items whose end was not asked for yet."""
        for _ in range(min(at_once, len(items))):
            # Daemons: Ctrl-C arrives in the main thread, and must not wait for them.
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                item, future = self._waiting.get_nowait(), Future[Result]()
                try:
                    future.set_result(self._work(item))
                except BaseException as error:
                    future.set_exception(error)
                self._ended.put((item, future))

    def ended(self, seconds: float) -> Iterator[tuple[Item, Future[Result]]]:
        """Items that have ended since, with their results or errors; waits for the first at most so long."""
        wait = seconds if self.left else 0.0
        with contextlib.suppress(queue.Empty):
            while True:
                one = self._ended.get(timeout=wait) if wait else self._ended.get_nowait()
                self.left -= 1
                yield one
                wait = 0.0
