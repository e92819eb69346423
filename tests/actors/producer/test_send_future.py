"""Our light future behaves as the standard library's does, even inside the library's helpers."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, InvalidStateError, as_completed, wait
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.actors.producer.plain.record_batch import RecordBatch
from escrowmq.replication.errors import Closed, OutcomeUnknown, Unavailable
from escrowmq.replication.model import RecordMetadata
from tests.support.plain import fail, parcel_of, store
from tests.support.waiting import wait_until

METADATA = RecordMetadata("t", 0, 7, 1)


def later(work: Callable[[], None]) -> None:
    threading.Timer(0.05, work).start()


def one() -> tuple[RecordBatch, Any]:
    """A parcel of one message, and its future."""
    parcel, (future,) = parcel_of(b"row")
    return parcel, future


def test_it_says_that_it_is_one_and_has_all_that_one_has() -> None:
    _, future = one()
    assert isinstance(future, Future)
    public = [name for name in dir(Future) if not name.startswith("_")]
    assert [name for name in public if not hasattr(future, name)] == []


def test_a_result_wakes_those_who_block_for_it() -> None:
    parcel, future = one()
    later(lambda: store(parcel, 7))
    assert not future.done()
    assert future.result(5.0) == METADATA
    assert future.done() and not future.running() and future.exception() is None


def test_an_error_is_raised() -> None:
    parcel, future = one()
    later(lambda: fail(parcel, Unavailable("no leader", 0.7)))
    with pytest.raises(Unavailable) as raised:
        future.result(5.0)
    assert isinstance(future.exception(), Unavailable) and raised.value.retry_after_s == 0.7


def test_waiting_ends_in_time_and_can_be_tried_again() -> None:
    parcel, future = one()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            future.result(0.01)
    assert not parcel.askers, "who gave up is forgotten"
    store(parcel, 7)
    assert future.result(0.01) == METADATA


def test_many_are_settled_at_once_and_each_waiter_gets_its_own() -> None:
    parcel, futures = parcel_of(*[b"row"] * 50)
    later(lambda: store(parcel, end=50))
    done, pending = wait(futures, timeout=5.0)
    assert len(done) == 50 and not pending
    assert [f.result().offset for f in futures] == list(range(50))


def test_the_first_of_many_and_mixed_with_ordinary_ones() -> None:
    parcel, mine = one()
    other = Future[int]()
    later(lambda: store(parcel, 7))
    done, pending = wait([mine, other], timeout=5.0, return_when=FIRST_COMPLETED)
    assert done == {mine} and pending == {other}
    other.set_result(1)
    assert set(as_completed([mine, other])) == {mine, other}


def test_a_wait_that_ends_at_the_first_error_or_in_time() -> None:
    parcel, futures = parcel_of(b"1", b"2", b"3")
    later(lambda: fail(parcel, Unavailable("no leader"), 1, 2))
    done, _ = wait(futures, timeout=5.0, return_when=FIRST_EXCEPTION)
    assert done == {futures[1]}
    assert wait(futures, timeout=0.01)[0] == {futures[1]}
    with pytest.raises(TimeoutError):
        list(as_completed(futures, timeout=0.01))


def test_they_complete_in_the_order_in_which_they_end_and_are_those_that_were_given() -> None:
    parcel, futures = parcel_of(b"1", b"2", b"3")

    def end() -> None:
        wait_until(lambda: parcel.askers, what="somebody to wait")  # those that ended before have no order
        for number in (2, 0, 1):
            store(parcel, number, number, number + 1)
            time.sleep(0.02)

    later(end)
    completed = list(as_completed(futures, timeout=5.0))
    assert [id(f) for f in completed] == [id(futures[n]) for n in (2, 0, 1)]


def test_callbacks_run_once_whenever_they_were_added() -> None:
    seen: list[RecordMetadata] = []
    parcel, future = one()
    future.add_done_callback(lambda f: seen.append(f.result()))
    store(parcel, 7)
    future.add_done_callback(lambda f: seen.append(f.result()))
    assert seen == [METADATA, METADATA]


def test_what_a_callback_raises_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    parcel, futures = parcel_of(b"1", b"2")
    seen: list[Any] = []
    futures[0].add_done_callback(lambda f: 1 / 0)
    futures[0].add_done_callback(seen.append)
    futures[1].add_done_callback(seen.append)
    with caplog.at_level(logging.ERROR):
        store(parcel, end=2)
        futures[1].add_done_callback(lambda f: 1 / 0)
    assert seen[0] is futures[0] and seen[1] is futures[1]
    assert caplog.text.count("ZeroDivisionError: division by zero") == 2


def test_asyncio_can_wrap_it() -> None:
    async def main(end: Callable[[RecordBatch], None]) -> RecordMetadata:
        parcel, future = one()
        later(lambda: end(parcel))
        return await asyncio.wrap_future(future)

    assert asyncio.run(main(lambda parcel: store(parcel, 7))) == METADATA
    with pytest.raises(OutcomeUnknown):
        asyncio.run(main(lambda parcel: fail(parcel, OutcomeUnknown("x"))))


def test_a_message_that_was_handed_over_cannot_be_taken_back() -> None:
    _, future = one()
    assert not future.cancel() and not future.cancelled()


def test_nobody_but_its_producer_ends_it_and_it_stays_in_its_process() -> None:
    _, future = one()
    for attempt in (future.set_result, future.set_exception):
        with pytest.raises(InvalidStateError, match="only its producer"):
            attempt(None)
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled"):
            attempt(future)


def test_it_shows_what_became_of_it() -> None:
    parcel, futures = parcel_of(b"1", b"2")
    assert "pending" in repr(futures[0])
    store(parcel, 7)
    fail(parcel, Unavailable("no leader"), 1, 2)
    assert "offset=7" in repr(futures[0]) and "no leader" in repr(futures[1])


def test_each_blocked_thread_is_woken_by_its_own_future() -> None:
    parcel, futures = parcel_of(*[b"row"] * 20)
    threads = [threading.Thread(target=f.result, args=(5.0,)) for f in futures]
    for thread in threads:
        thread.start()
    for number in range(20):
        time.sleep(0.001)
        store(parcel, number, number, number + 1)
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()


def test_threads_that_look_while_messages_end_get_their_own_results() -> None:
    parcel, futures = parcel_of(*[b"row"] * 2000)
    wrong: list[int] = []

    def look() -> None:
        for number, future in enumerate(futures):
            if future.result(10.0).offset != number:
                wrong.append(number)

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(0, 2000, 5):
        store(parcel, number, number, number + 5)
    for thread in threads:
        thread.join(10.0)
        assert not thread.is_alive()
    assert not wrong


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_messages_may_end_in_pieces_and_in_any_order(data: st.DataObject) -> None:
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, 29), max_size=8))), 30]
    pieces = data.draw(st.permutations(list(pairwise(cuts))))
    parcel, futures = parcel_of(*[b"row"] * 30)
    told: list[int] = []
    asked = data.draw(st.sets(st.integers(0, 29)))
    for number in asked:
        futures[number].add_done_callback(lambda f, number=number: told.append(number))  # type: ignore[misc]
    over: set[int] = set()
    for start, end in pieces:
        if (failed := start % 3) == 0:
            fail(parcel, Unavailable(f"{start}"), start, end)
        else:
            store(parcel, 100 * start, start, end)
        over |= set(range(start, end))
        for number in range(start, end):
            if failed == 0:
                assert f"{start};" in str(futures[number].exception(0))
            else:
                assert futures[number].result(0).offset == 100 * start + number - start
        assert [future.done() for future in futures] == [number in over for number in range(30)]
        assert sorted(told) == sorted(asked & over)
    assert not parcel.askers


# ---------------------------------------------------------------- memory


class Noticed:
    """Something of the application that ought to be freed."""


@pytest.mark.parametrize("look", ["result", "exception", "callback", "wait", "as_completed", "asyncio"])
@pytest.mark.parametrize("good", [True, False], ids=["stored", "failed"])
def test_nothing_is_left_when_the_last_future_is_gone(look: str, good: bool) -> None:
    """The collector does not look into futures: a circle through one would stay for good."""
    seen: list[weakref.ref[Any]] = []

    def use() -> None:
        mine = Noticed()
        seen.append(weakref.ref(mine))
        parcel, future = one()
        typed: Any = future
        future.add_done_callback(lambda f: repr((mine, typed)))
        ended = threading.Event()

        def end() -> None:
            if good:
                store(parcel)
            else:
                fail(parcel, Unavailable("x"))
            ended.set()

        threading.Timer(0.01, end).start()
        try:
            if look == "result":
                future.result(5.0)
            elif look == "exception" and (error := future.exception(5.0)) is not None:
                raise error
            elif look == "callback":
                future.add_done_callback(lambda f: f.result())
            elif look == "wait":
                wait([typed], 5.0)
            elif look == "as_completed":
                [f.result() for f in as_completed([typed], 5.0)]
            elif look == "asyncio":

                async def main() -> None:
                    await asyncio.wrap_future(typed)

                asyncio.run(main())
        except Unavailable:
            pass
        ended.wait(5.0)

    logging.disable(logging.ERROR)
    try:
        use()
    finally:
        logging.disable(logging.NOTSET)
    deadline = time.monotonic() + 5.0
    while seen[0]() is not None and time.monotonic() < deadline:  # the timer's thread ends soon
        gc.collect()
        time.sleep(0.01)
    assert seen[0]() is None


def test_the_collector_does_not_know_it() -> None:
    parcel, future = one()
    assert not gc.is_tracked(future)
    store(parcel)
    assert not gc.is_tracked(future)


def test_in_a_forked_process_it_says_that_the_answer_is_elsewhere() -> None:
    parcel, futures = parcel_of(b"1", b"2")
    store(parcel, 7)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert futures[0].result(0).offset == 7
            futures[1].result(5.0)
        except Closed as closed:
            code = 0 if "os.fork()" in str(closed) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store(parcel, 8, 1, 2)
    assert futures[1].result(0).offset == 8
