"""A lock at a place that can neither lock nor write under a condition: claims, which are leases.

Who wants the lock writes a claim and then lists all claims. If another live one is there, it withdraws and tries again
after a random pause. Stores list consistently, so of two writers the later one always sees the earlier one's claim: no
two can believe that they are alone. A claim is renewed while it is held. One that was not renewed for a while belongs
to a process that is dead; its age is the difference of two times of the store's own clock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

from ldaf_bench.artifacts import StoreError

DEAD_SECONDS = 60.0
"""A claim that is older than this was not renewed, and is dead."""
RENEW_SECONDS = 10.0
PAUSE = 2.0
"""Seconds between two tries, at most."""
logger = logging.getLogger("ldaf_bench.store")


class Claims(Protocol):
    """The claims of one lock, as small files at the place."""

    def write(self, name: str, content: bytes) -> None:
        """Write a claim, or renew it."""

    def times(self) -> dict[str, float]:
        """All claims, with the seconds at which they were written by the place's clock."""

    def delete(self, name: str) -> None:
        """Withdraw a claim. It need not be there."""


@contextlib.contextmanager
def leased(claims: Claims, busy: str, say: Callable[[str], None] | None) -> Iterator[None]:
    """Hold the lock; see `Store.lock`.

    Without `say`, the lock is refused as soon as its holder is seen to renew it: the claim of a process that was killed
    is waited out.
    """
    own, first = uuid.uuid4().hex, dict[str, float]()
    content = f"{socket.gethostname()} {os.getpid()}\n".encode()
    told = False
    while others := _claim(claims, own, content):
        if say is None and any(time != first.setdefault(name, time) for name, time in others.items()):
            raise StoreError(f"{busy}: wait for it, or stop it.")
        if not told:
            alive = f"waiting for up to {DEAD_SECONDS:.0f} s to see whether it is alive."
            (say or logger.warning)(f"{busy}: {'waiting for it.' if say else alive}")
        told = True
        time.sleep(PAUSE * random.uniform(0.2, 1))
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(claims, own, content, ended), daemon=True, name="ldaf_bench lease")
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join(RENEW_SECONDS)
        with contextlib.suppress(StoreError, OSError):  # else it will be dead in a minute
            claims.delete(own)


def _claim(claims: Claims, own: str, content: bytes) -> dict[str, float]:
    """Claim the lock; if others have live claims, withdraw and return these."""
    try:
        claims.write(own, content)
        times = claims.times()
        now = times.pop(own, max(times.values(), default=0.0))
        others = {name: written for name, written in times.items() if now - written <= DEAD_SECONDS}
    except BaseException:
        with contextlib.suppress(StoreError, OSError):
            claims.delete(own)
        raise
    for name in times.keys() - others.keys():
        claims.delete(name)
    if others:
        claims.delete(own)
    return others


def _renew(claims: Claims, own: str, content: bytes, ended: threading.Event) -> None:
    while not ended.wait(RENEW_SECONDS):
        # If the store stays away the lease ends, and at worst another process does the same work.
        with contextlib.suppress(StoreError, OSError):
            claims.write(own, content)
