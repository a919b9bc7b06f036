"""Patience with a store that is late or away for a while: bounded retries, each with a longer pause before it."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ldaf_bench.artifacts import StoreError, no_space

Result = TypeVar("Result")
SECONDS = 120.0
"""For so long a store may be away."""
SLOWEST = 500_000.0
"""Bytes per second; a large file gets more time than a small one."""
LATE = 5.0
"""Seconds after which people are told that the store is late."""
PAUSE, LONGEST_PAUSE = 0.5, 8.0
HOPELESS = re.compile(
    "ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|UNRECOGNIZED_CLIENT"
    "|EXPIRED_TOKEN|NO_SUCH_BUCKET|MISSING_AUTHENTICATION_TOKEN"
)
"""What the store says when no waiting will help."""
logger = logging.getLogger("ldaf_bench.store")


class Patience:
    """Calls of a store, repeated while it does not answer. Used by several threads."""

    def __init__(self, name: str, seconds: float | None = None) -> None:
        self.name, self.seconds, self.retries = name, seconds or SECONDS, 0
        self._away, self._given_up, self._lock = False, False, threading.Lock()

    def __call__(self, call: Callable[[], Result], num_bytes: int = 0) -> Result:
        """What `call` returns. A `FileNotFoundError` is an answer; a `StoreError` says that there was none in time.

        `call` may run more than once, and so must not mind that it ran before.
        """
        # Who was not answered once is not asked as patiently again: the run is about to end.
        seconds = 0.0 if self._given_up else self.seconds
        end, pause = time.monotonic() + seconds + num_bytes / SLOWEST, PAUSE
        while True:
            try:
                found = self._attempt(call, end)
            except FileNotFoundError:
                self._answered()
                raise
            except OSError as error:
                if "NO_SUCH_KEY" in str(error):
                    raise FileNotFoundError(f"It is not in {self.name}.") from error
                if no_space(error):
                    raise
                if HOPELESS.search(str(error)) or isinstance(error, PermissionError):
                    raise StoreError(
                        f"The store {self.name} refuses ({_reason(error)}). Check its name, and the credentials in the "
                        "environment."
                    ) from error
                if time.monotonic() + pause >= end:
                    self._given_up = True
                    raise StoreError(
                        f"The store {self.name} did not answer for {self.seconds:.0f} seconds ({_reason(error)}). Run "
                        "the same command again to resume."
                    ) from error
                self._late()
                time.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, LONGEST_PAUSE)
                with self._lock:
                    self.retries += 1
            else:
                self._answered()
                return found

    def _attempt(self, call: Callable[[], Result], end: float) -> Result:
        """In a thread of its own: a server that is frozen in the middle of an answer keeps its caller for ever."""
        future: Future[Result] = Future()

        def work() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True, name="ldaf_bench store").start()
        try:
            return future.result(LATE)
        except TimeoutError:
            if future.done():
                raise
        self._late()
        return future.result(max(0.0, end - time.monotonic()))

    def _late(self) -> None:
        with self._lock:
            news, self._away = not self._away, True
        if news:
            logger.warning("The store %s does not answer; trying again for up to %.0f s.", self.name, self.seconds)

    def _answered(self) -> None:
        with self._lock:
            news, self._away, self._given_up = self._away, False, False
        if news:
            logger.warning("The store %s answers again.", self.name)


def _reason(error: OSError) -> str:
    """In a few words, without addresses and keys, which a server may repeat."""
    if isinstance(error, TimeoutError):
        return "its time is up"
    found = re.search("AWS Error ([A-Z_]+)", str(error))
    return found[1].lower().replace("_", " ") if found else error.strerror or type(error).__name__
