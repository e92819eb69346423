"""The future of a plain message, cheap enough for hundreds of thousands at a time.

It is a batch (record_batch.py) and the message's number in it, in an object that Python's garbage collector
does not track. Only ``msgspec.Struct`` makes classes of such objects: whatever ``class`` makes is tracked,
even a subclass of ``int`` with empty ``__slots__``. Making 100,000 of them among 1,000,000 other objects
takes 0.4 us each and starts no collection; 2 us if they are tracked, and 5 us for a future with two lists,
as it was before. Metadata, waiters and callbacks are made for those who ask.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NoReturn

import msgspec

from escrowmq.actors.client.forking import FORKED
from escrowmq.actors.client.loop_bridge import LoopBridge
from escrowmq.actors.producer.record_batch import Ending, RecordBatch, call_back
from escrowmq.replication.errors import Closed
from escrowmq.replication.model import RecordMetadata


class _Blocked:
    """A thread blocked in ``result``; the standard library calls the same methods on its own waiters."""

    __slots__ = ("_gate",)

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def add_result(self, future: Any) -> None:
        """The future has a result."""
        self._gate.release()

    add_exception = add_result

    def wait(self, timeout: float | None) -> bool:
        return self._gate.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))


class _Told(list[Any]):
    """The waiters of a future that is done: the standard library takes its own out again, but they are
    forgotten already."""

    def remove(self, waiter: Any, /) -> None:
        """Nothing to do."""


class SendFuture(msgspec.Struct, gc=False, eq=False, frozen=True):
    """What ``send`` returns: a ``concurrent.futures.Future[RecordMetadata]`` in all that a caller can do with
    it, ``isinstance`` included, but for weak references. ``wait``, ``as_completed`` and
    ``asyncio.wrap_future`` accept it. A message that was handed over cannot be cancelled. Every call of
    ``result`` or ``exception`` makes its own object."""

    _parcel: RecordBatch
    _number: int

    def __eq__(self, other: object) -> bool:
        """Two futures of one message are the same one to whoever keeps sets or dictionaries of them."""
        if type(other) is not SendFuture:
            return NotImplemented
        return other._parcel is self._parcel and other._number == self._number

    def __hash__(self) -> int:
        return hash((id(self._parcel), self._number))

    @property  # type: ignore[misc]
    def __class__(self) -> type[Future[RecordMetadata]]:  # type: ignore[override]
        return Future

    def cancel(self) -> bool:
        """Always False: the message may already be on its way."""
        return False

    def cancelled(self) -> bool:
        """Always False."""
        return False

    def running(self) -> bool:
        """Always False: a message waits or is done."""
        return False

    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._parcel.ending(self._number) is not None

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The metadata, or the error; TimeoutError if ``timeout`` seconds pass first."""
        ending = self._parcel.ending(self._number) or self._block(timeout)
        if ending.has_failed:
            raise ending.error()  # type: ignore[misc]  # there is one
        return ending.metadata(self._number)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None if it succeeded; TimeoutError if ``timeout`` seconds pass first."""
        return (self._parcel.ending(self._number) or self._block(timeout)).error()

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        """Calls ``fn`` with this future when it is done: in the producer's thread, or now if it is done."""
        parcel = self._parcel
        with RecordBatch.lock:
            if parcel.ending(self._number) is None:
                parcel.asked(self._number, self).callbacks.append(fn)
                return
        call_back(fn, self)

    def asyncio_future(self, bridge: LoopBridge) -> asyncio.Future[RecordMetadata]:
        """The same as a future of an event loop, which is told of many messages at once."""
        future: asyncio.Future[RecordMetadata] = bridge.loop.create_future()
        self._parcel.listen(self._number, bridge, future)
        return future

    def _block(self, timeout: float | None) -> Ending:
        parcel, number = self._parcel, self._number
        if parcel.process != RecordBatch.processes:
            raise Closed(f"this message was sent by the parent process, which gets its answer: {FORKED}")
        waiter = _Blocked()
        with RecordBatch.lock:
            ending = parcel.ending(number)
            if ending is not None:
                return ending
            parcel.asked(number, self).waiters.append(waiter)
        if not waiter.wait(timeout):
            with RecordBatch.lock:
                ending = parcel.ending(number)
                if ending is not None:
                    return ending
                asked = parcel.asked(number, self)
                asked.waiters.remove(waiter)
                if not asked.waiters and not asked.callbacks:
                    parcel.nobody_asks(number)
                raise FutureTimeout
        ending = parcel.ending(number)
        assert ending is not None
        return ending

    # ------------------------------------------------------------ what the standard library's helpers use

    # Private names, unchanged since 3.2; tests/actors/producer/test_send_future.py runs those helpers.

    @property
    def _condition(self) -> Any:
        return RecordBatch.lock

    @property
    def _state(self) -> str:
        return "FINISHED" if self.done() else "PENDING"

    @property
    def _waiters(self) -> list[Any]:
        with RecordBatch.lock:
            return _Told() if self.done() else self._parcel.asked(self._number, self).waiters

    # ------------------------------------------------------------ what only the producer may do

    def set_result(self, result: object) -> NoReturn:
        """Not for callers."""
        raise InvalidStateError("only its producer ends the future of a message")

    set_exception = set_result

    def set_running_or_notify_cancel(self) -> NoReturn:
        """Not for callers."""
        self.set_result(None)

    def __reduce__(self) -> NoReturn:
        raise TypeError("the future of a message cannot be pickled; send its result() instead")

    def __repr__(self) -> str:
        ending = self._parcel.ending(self._number)
        if ending is None:
            shown = "pending"
        else:
            shown = f"{ending.error()!r}" if ending.has_failed else f"{ending.metadata(self._number)}"
        return f"<SendFuture at {id(self):#x} {shown}>"
