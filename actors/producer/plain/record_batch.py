"""Plain messages of one partition that callers handed over one after the other, and what became of them.

There is one parcel for all messages that leave the inbox together, and no object per message that Python's
garbage collector tracks: their rows are ``bytes``, and a caller's future is a parcel and a number
(``SendFuture``). A tracked object per message costs more than everything else about the message: 100,000 of
them under way make the collector visit them, and the application's own objects, again and again.

A future holds its parcel, and nothing else does once all of its messages have ended: so a result is kept
exactly as long as somebody may ask for it. For that, what a parcel keeps must not lead back to a future. The
collector does not look into futures, and would never find such a circle. Hence whoever waits is forgotten
when told, and the error of a parcel is copied for everybody who gets it, since a raised error refers to the
callers' variables.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from operator import attrgetter
from typing import Any, ClassVar, NoReturn, Protocol

import msgspec

from escrowmq.actors.client.closing import FORKED
from escrowmq.actors.client.router import LoopBridge
from escrowmq.replication.errors import Closed, EscrowMQError
from escrowmq.replication.model import RecordMetadata

log = logging.getLogger(__name__)
_start = attrgetter("start")


class Ending:
    """What became of the messages from number ``start`` up to ``end`` of a parcel."""

    __slots__ = ("_base", "_error", "_partition", "_timestamp", "_topic", "end", "start")

    def __init__(self, parcel: RecordBatch, start: int, end: int) -> None:
        self.start, self.end = start, end
        self._topic, self._partition = parcel.topic, parcel.partition
        self._base = self._timestamp = 0
        self._error: EscrowMQError | None = None

    def stored(self, base: int, timestamp: int) -> Ending:
        """They have the offsets from ``base`` on."""
        self._base, self._timestamp = base, timestamp
        return self

    def failed(self, error: EscrowMQError) -> Ending:
        """They have no offsets."""
        self._error = error
        return self

    def metadata(self, number: int) -> RecordMetadata:
        """Where the message is stored, if there is no error."""
        offset = self._base + number - self.start
        return RecordMetadata(self._topic, self._partition, offset, self._timestamp)

    def offsets(self, count: Any) -> Any:
        """The offsets of the first messages, from the numbers that count them: 0, 1, ..."""
        return self._base + count

    def schedule_id(self, number: int) -> str | None:
        """By which the message can be cancelled, if it waits for a time."""
        return None

    @property
    def has_failed(self) -> bool:
        """Whether there is an error."""
        return self._error is not None

    def error(self) -> EscrowMQError | None:
        """A copy of the error, which the caller may raise."""
        return None if self._error is None else copy.copy(self._error)


class Asked:
    """Who waits for one message: ``waiters`` of the standard library; ``callbacks``, which get ``future``."""

    __slots__ = ("callbacks", "future", "waiters")

    def __init__(self, future: Any) -> None:
        self.future = future
        self.waiters: list[Any] = []
        self.callbacks: list[Callable[[Any], object]] = []


class Listener(Protocol):
    """Is told of many messages at once: an event loop."""

    def ended(self, numbers: Sequence[int], futures: Sequence[Any], ending: Ending) -> None:
        """The messages of these numbers have ended; ``futures`` are what waits for each."""


class RecordBatch:
    """Messages of one partition. Filled under its owner's lock; asked by any thread; ended by the router's.

    ``rows`` are encoded messages or, if there are ``sizes``, one body of so many concatenated ones. The
    stream that sends them takes them out. ``size``: in bytes.
    """

    __slots__ = (
        "_listening", "askers", "endings", "partition", "process", "rows", "size", "sizes", "topic",
    )  # fmt: skip

    #: Whether its messages are delayed ones.
    later: ClassVar[bool] = False
    #: Held for nanoseconds, to end messages and to wait for them. One for all, and reentrant, since the
    #: standard library acquires the locks of several futures one after the other.
    lock: ClassVar[threading.RLock] = threading.RLock()
    #: Counts forks: what was under way in the parent has no answer in the child.
    processes: ClassVar[int] = 0

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.rows: list[bytes] = []
        self.size = 0
        self.sizes: list[int] | None = None
        self.process = RecordBatch.processes
        #: What is known of its messages, by start; nearly always one.
        self.endings: tuple[Ending, ...] = ()
        self.askers: dict[int, Asked] | None = None
        self._listening: dict[Listener, tuple[list[int], list[Any]]] | None = None

    def __reduce__(self) -> NoReturn:
        raise TypeError("what became of sent messages cannot be pickled; send its results instead")

    # ------------------------------------------------------------ who asks

    def ending(self, number: int) -> Ending | None:
        """What became of a message; None: nothing yet. Takes no lock."""
        endings = self.endings
        if not endings:
            return None
        ending = endings[bisect_right(endings, number, key=_start) - 1] if len(endings) > 1 else endings[0]
        return ending if ending.start <= number < ending.end else None

    def first_open(self, count: int) -> int | None:
        """The first of its ``count`` messages that has not ended; None: all have."""
        reached = 0
        for ending in self.endings:
            if ending.start > reached:
                break
            reached = ending.end
        return reached if reached < count else None

    def asked(self, number: int, future: Any) -> Asked:
        """Those who wait for a message that has not ended. The lock must be held."""
        if self.askers is None:
            self.askers = {}
        asked = self.askers.get(number)
        if asked is None:
            asked = self.askers[number] = Asked(future)
        return asked

    def nobody_asks(self, number: int) -> None:
        """Forgets those who waited for a message. The lock must be held."""
        if self.askers is not None:
            self.askers.pop(number, None)

    def listen(self, number: int, listener: Listener, future: Any) -> None:
        """Tells ``listener`` when the message has ended, possibly now."""
        with RecordBatch.lock:
            ending = self.ending(number)
            if ending is None:
                if self._listening is None:
                    self._listening = {}
                numbers, futures = self._listening.setdefault(listener, ([], []))
                numbers.append(number)
                futures.append(future)
                return
        listener.ended([number], [future], ending)

    # ------------------------------------------------------------ what becomes of them

    def end(self, ending: Ending) -> None:
        """Some of its messages have ended: tells everybody who waits for them."""
        called: list[Asked] = []
        told: list[tuple[Listener, list[int], list[Any]]] = []
        with RecordBatch.lock:
            if self.endings:
                self.endings = tuple(sorted((*self.endings, ending), key=_start))
            else:
                self.endings = (ending,)
            if self.askers:
                called = self._take_asked(ending)
            if self._listening:
                told = self._take_listening(ending)
        for asked in called:
            for callback in asked.callbacks:
                call_back(callback, asked.future)
        for listener, numbers, futures in told:
            listener.ended(numbers, futures, ending)

    def _take_asked(self, ending: Ending) -> list[Asked]:
        assert self.askers is not None
        taken: list[Asked] = []
        for number in [number for number in self.askers if ending.start <= number < ending.end]:
            asked = self.askers.pop(number)
            for waiter in asked.waiters:
                (waiter.add_exception if ending.has_failed else waiter.add_result)(asked.future)
            if asked.callbacks:
                taken.append(asked)
        return taken

    def _take_listening(self, ending: Ending) -> list[tuple[Listener, list[int], list[Any]]]:
        assert self._listening is not None
        told: list[tuple[Listener, list[int], list[Any]]] = []
        stays: dict[Listener, tuple[list[int], list[Any]]] = {}
        for listener, (numbers, futures) in self._listening.items():
            mine, others = ([], []), ([], [])  # type: tuple[list[int], list[Any]], tuple[list[int], list[Any]]
            for number, future in zip(numbers, futures, strict=True):
                chosen = mine if ending.start <= number < ending.end else others
                chosen[0].append(number)
                chosen[1].append(future)
            if mine[0]:
                told.append((listener, *mine))
            if others[0]:
                stays[listener] = others
        self._listening = stays
        return told


def call_back(callback: Callable[[Any], object], future: Any) -> None:
    """Runs a callback of the application; what it raises is logged, as the standard library does."""
    try:
        callback(future)
    except BaseException:  # SystemExit, too: it would end the producer's thread, and all who wait for it
        log.exception("exception calling callback for %r", future)


def _in_child() -> None:
    RecordBatch.lock = threading.RLock()  # a thread that does not exist here may have held it
    RecordBatch.processes += 1


os.register_at_fork(after_in_child=_in_child)


# ------------------------------------------------------------------------------------------------------------
# The future of a plain message, cheap enough for hundreds of thousands at a time.
#
# It is a batch (record_batch.py) and the message's number in it, in an object that Python's garbage collector
# does not track. Only ``msgspec.Struct`` makes classes of such objects: whatever ``class`` makes is tracked,
# even a subclass of ``int`` with empty ``__slots__``. Making 100,000 of them among 1,000,000 other objects
# takes 0.4 us each and starts no collection; 2 us if they are tracked, and 5 us for a future with two lists,
# as it was before. Metadata, waiters and callbacks are made for those who ask.


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
