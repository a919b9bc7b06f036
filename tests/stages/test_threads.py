"""Networks side by side: every one is worked on once, a few at a time, and an error is told and not raised."""

import threading
import time

from ldaf_bench.stages.threads import Threads


def all_of(threads):
    found = []
    while threads.left:
        found += threads.ended(1.0)
    return found


def test_every_item_ends_once_with_its_result_or_its_error():
    def work(item):
        if item == 3:
            raise ValueError("three")
        return item**2

    ended = dict(all_of(Threads(work, range(6), 2)))
    assert sorted(ended) == list(range(6))
    assert str(ended.pop(3).exception()) == "three"
    assert {item: future.result() for item, future in ended.items()} == {0: 0, 1: 1, 2: 4, 4: 16, 5: 25}


def test_as_many_run_at_a_time_as_may_and_no_more():
    lock, meet = threading.Lock(), threading.Barrier(2, timeout=10)
    running, most = 0, 0

    def work(item):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meet.wait()  # nobody gets on alone
        with lock:
            running -= 1

    assert len(all_of(Threads(work, range(4), 2))) == 4
    assert most == 2


def test_asking_does_not_wait_longer_than_it_may():
    go = threading.Event()
    threads = Threads(lambda item: go.wait(60), [1], 1)
    begin = time.monotonic()
    assert list(threads.ended(0)) == []
    assert list(threads.ended(0.05)) == []
    assert time.monotonic() - begin < 30
    go.set()
    assert [item for item, _ in all_of(threads)] == [1]
    assert list(threads.ended(60)) == []
