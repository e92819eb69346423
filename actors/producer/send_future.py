"""The future of a plain message, cheap enough for hundreds of thousands at a time.

``concurrent.futures.Future`` creates a condition, a lock, a deque and four bound methods for each; creating
and settling one takes 3 us, and the garbage collector visits all of them (10 us per message with 100,000
outstanding). Here all futures of a process share one lock, which is held for nanoseconds, and a thread that
blocks creates its own. ``wait``, ``as_completed`` and ``asyncio.wrap_future`` accept these like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from escrowmq.replication.model import RecordMetadata

_PENDING, _FINISHED = "PENDING", "FINISHED"
#: Reentrant, since the standard library acquires the locks of several futures one after the other.
_SHARED = threading.Condition(threading.RLock())


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


class SendFuture(Future[RecordMetadata]):
    """What ``send`` returns. A message that was handed over cannot be cancelled."""

    # Private names of the standard library, unchanged since 3.2; tests/actors/producer/test_send_future.py
    # compares them with it.
    _state: str
    _waiters: list[Any]
    _done_callbacks: list[Any]

    def __init__(self) -> None:
        self._condition = _SHARED
        self._state = _PENDING
        self._result = None
        self._exception = None
        self._waiters = []
        self._done_callbacks = []

    def cancel(self) -> bool:
        """Always False: the message may already be on its way."""
        return False

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """The metadata, or the error; TimeoutError if ``timeout`` seconds pass first."""
        if self._state is not _FINISHED:
            self._block(timeout)
        if self._exception is not None:
            raise self._exception
        result: RecordMetadata = self._result  # type: ignore[assignment]
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None if it succeeded; TimeoutError if ``timeout`` seconds pass first."""
        if self._state is not _FINISHED:
            self._block(timeout)
        return self._exception

    def _block(self, timeout: float | None) -> None:
        waiter = _Blocked()
        with _SHARED:
            if self._state is _FINISHED:
                return
            self._waiters.append(waiter)
        if waiter.wait(timeout):
            return
        with _SHARED:
            if self._state is not _FINISHED:
                self._waiters.remove(waiter)
                raise FutureTimeout

    def set_result(self, result: RecordMetadata) -> None:
        """Called by the producer."""
        settle([(self, result)])

    def set_exception(self, exception: BaseException | None) -> None:
        """Called by the producer."""
        with _SHARED:
            self._exception = exception
            self._state = _FINISHED
            for waiter in self._waiters:
                waiter.add_exception(self)
        self._invoke_callbacks()  # type: ignore[attr-defined]


def settle(settled: Iterable[tuple[SendFuture, RecordMetadata]]) -> None:
    """Gives many futures their results, under one lock."""
    called_back: list[SendFuture] = []
    with _SHARED:
        for future, result in settled:
            future._result = result
            future._state = _FINISHED
            if future._waiters:
                for waiter in future._waiters:
                    waiter.add_result(future)
            if future._done_callbacks:
                called_back.append(future)
    for future in called_back:
        future._invoke_callbacks()  # type: ignore[attr-defined]
