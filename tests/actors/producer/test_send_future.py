"""Our light future behaves as the standard library's does, even inside the library's helpers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait

import pytest

from escrowmq.actors.producer.send_future import SendFuture, settle
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.model import RecordMetadata

METADATA = RecordMetadata("t", 0, 7, 1)


def later(work: Callable[[], None]) -> None:
    threading.Timer(0.05, work).start()


def test_it_has_every_attribute_that_the_standard_library_gives_its_own() -> None:
    assert vars(SendFuture()).keys() == vars(Future()).keys()


def test_a_result_wakes_those_who_block_for_it() -> None:
    future = SendFuture()
    later(lambda: future.set_result(METADATA))
    assert not future.done()
    assert future.result(5.0) == METADATA
    assert future.done() and not future.running() and future.exception() is None


def test_an_error_is_raised() -> None:
    future = SendFuture()
    later(lambda: future.set_exception(Unavailable("no leader")))
    with pytest.raises(Unavailable):
        future.result(5.0)
    assert isinstance(future.exception(), Unavailable)


def test_waiting_ends_in_time_and_can_be_tried_again() -> None:
    future = SendFuture()
    with pytest.raises(TimeoutError):
        future.result(0.01)
    future.set_result(METADATA)
    assert future.result(0.01) == METADATA


def test_many_are_settled_at_once_and_each_waiter_gets_its_own() -> None:
    futures = [SendFuture() for _ in range(50)]
    later(lambda: settle((f, RecordMetadata("t", 0, i, 1)) for i, f in enumerate(futures)))
    done, pending = wait(futures, timeout=5.0)
    assert len(done) == 50 and not pending
    assert [f.result().offset for f in futures] == list(range(50))


def test_the_first_of_many_and_mixed_with_ordinary_ones() -> None:
    mine, other = SendFuture(), Future[int]()
    later(lambda: mine.set_result(METADATA))
    done, _ = wait([mine, other], timeout=5.0, return_when=FIRST_COMPLETED)
    assert done == {mine}
    other.set_result(1)
    assert set(as_completed([mine, other])) == {mine, other}


def test_callbacks_run_once_whenever_they_were_added() -> None:
    seen: list[RecordMetadata] = []
    future = SendFuture()
    future.add_done_callback(lambda f: seen.append(f.result()))
    settle([(future, METADATA)])
    future.add_done_callback(lambda f: seen.append(f.result()))
    assert seen == [METADATA, METADATA]


def test_asyncio_can_wrap_it() -> None:
    async def main() -> RecordMetadata:
        future = SendFuture()
        later(lambda: future.set_result(METADATA))
        return await asyncio.wrap_future(future)

    assert asyncio.run(main()) == METADATA


def test_a_message_that_was_handed_over_cannot_be_taken_back() -> None:
    future = SendFuture()
    assert not future.cancel() and not future.cancelled()


def test_each_blocked_thread_is_woken_by_its_own_future() -> None:
    futures = [SendFuture() for _ in range(20)]
    threads = [threading.Thread(target=f.result, args=(5.0,)) for f in futures]
    for thread in threads:
        thread.start()
    for future in futures:
        time.sleep(0.001)
        future.set_result(METADATA)
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()
