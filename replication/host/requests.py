"""Requests: operations that a client wants carried out, from their bytes to their results."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.errors import Closed, InvalidMessage, Overloaded
from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.host.running_replica import NOT_RUNNING, RunningReplica
from escrowmq.replication.metrics import LATENCY_S, Histogram
from escrowmq.replication.replica.replica import DISK_FULL_RETRY_S
from escrowmq.replication.replica.validation import brings_new_work, parse_request
from escrowmq.replication.state.topics import Topic

# ------------------------------------------------------------------ counts
# Outcomes of requests, counted in the threads that handle them.
#
# Many threads handle requests, and each counts in its own cell, since ``+=`` on a shared counter loses
# counts; a reader adds up the cells. A request costs two readings of the clock and a pass over its
# operations.


_DECISIONS = (OpType.COMMIT, OpType.ROLLBACK)


class Cell:
    """The counts of one thread."""

    __slots__ = ("commit_s", "prepare_s", "refused")

    def __init__(self) -> None:
        self.prepare_s, self.commit_s = Histogram(LATENCY_S), Histogram(LATENCY_S)
        self.refused: dict[str, int] = {}

    def answered(self, status: str, ops: Sequence[Op], seconds: float) -> None:
        """A request with these operations was answered with ``status``, after ``seconds``."""
        if status != "ok":
            self.refused[status] = self.refused.get(status, 0) + 1
            return
        kinds = {op.type for op in ops}
        if OpType.PREPARE in kinds:
            self.prepare_s.observe(seconds)
        if not kinds.isdisjoint(_DECISIONS):
            self.commit_s.observe(seconds)


class Cells(threading.local):
    """``cell``: that of the calling thread. There are as many as calling threads, which Ray bounds."""

    def __init__(self, all_cells: list[Cell]) -> None:
        self.cell = Cell()
        all_cells.append(self.cell)


class RequestCounts:
    """Outcomes of requests. Thread-safe."""

    def __init__(self) -> None:
        self._all: list[Cell] = []
        self._cells = Cells(self._all)

    def answered(self, status: str, ops: Sequence[Op], seconds: float) -> None:
        """See :meth:`Cell.answered`."""
        self._cells.cell.answered(status, ops, seconds)

    def refused(self) -> Counter[str]:
        """Requests that were not done, by reason."""
        total = Counter[str]()
        for cell in list(self._all):
            total.update(cell.refused.copy())
        return total

    def prepare_s(self) -> Histogram:
        """Seconds of requests with a PREPARE."""
        return Histogram.sum(LATENCY_S, [cell.prepare_s for cell in list(self._all)])

    def commit_s(self) -> Histogram:
        """Seconds of requests with a COMMIT or ROLLBACK."""
        return Histogram.sum(LATENCY_S, [cell.commit_s for cell in list(self._all)])


# ------------------------------------------------------------------ requests


#: If a request is not answered within this time, its outcome is unknown to the caller (it may still take
#: effect).
SUBMIT_WAIT_S = 15.0
_COMMITS = frozenset((OpType.GROUP_OFFSETS, OpType.PLACES))
#: Calls its argument to queue a request, which must not take long; or returns the refusal to answer with.
Turn = Callable[[Callable[[], None]], Reply | None]


def topics_of_commits(ops: Sequence[Op], topics: Mapping[str, Topic]) -> dict[str, Topic | None]:
    """The present topics of the consumer groups' offsets in ``ops``, by name."""
    return {op.meta.topic: topics.get(op.meta.topic) for op in ops if op.type in _COMMITS}


class Requests:
    """Takes requests for one replica. Thread-safe; blocks until there is an answer."""

    def __init__(self, running: RunningReplica) -> None:
        self._running = running
        self._group_and_count = running.gid, running.setup.groups
        self._bytes_max = running.setup.config.request_bytes_max
        #: Their outcomes, for the exporter.
        self.counts = RequestCounts()

    def submit(self, request: bytes) -> Reply:
        """Carry out operations; see the contract in ops.py for frames and results.

        ``("ok", results)``, or why there are none: see ``Reply``.
        """
        return self._submit(request, from_broker=False)

    def follow(self, request: bytes) -> Reply:
        """As ``submit``, for the leader of another group: its decisions as the home of transactions
        over several groups. For brokers only."""
        return self._submit(request, from_broker=True)

    def submit_in_turn(self, request: bytes, turn: Turn) -> Reply:
        """As ``submit``. ``turn`` gets a function that queues the request, and calls it at the moment that
        fixes its order in the log; everything slow comes before or after that call. The request contains only
        offsets of consumer groups, or deletes a group."""
        return self._submit(request, from_broker=False, turn=turn)

    def begin(self, request: bytes, done: Callable[[Reply], None]) -> None:
        """As ``submit``, in the driver's thread, and without waiting: calls ``done`` there, once, with the
        answer; never if the replica ends before."""
        began, running = time.monotonic(), self._running
        ops: Sequence[Op] = ()

        def answered(answer: Reply) -> None:
            self.counts.answered(answer[0], ops, time.monotonic() - began)
            done(answer)

        try:
            ops = self._parse(request, from_broker=False)
        except InvalidMessage as error:
            answered(("malformed", str(error)))
            return
        if self._lacks_room(ops):
            answered(("disk_full", DISK_FULL_RETRY_S))
            return
        running.replica.submit(request, ops, answered)
        running.driver.kick()

    def _submit(self, request: bytes, *, from_broker: bool, turn: Turn | None = None) -> Reply:
        began = time.monotonic()
        ops: Sequence[Op] = ()
        try:
            ops = self._parse(request, from_broker=from_broker)
        except InvalidMessage as error:
            answer: Reply = ("malformed", str(error))
        else:
            answer = self._answer(request, ops, turn)
        self.counts.answered(answer[0], ops, time.monotonic() - began)
        return answer

    def _parse(self, request: bytes, *, from_broker: bool) -> list[Op]:
        if type(request) is not bytes:
            raise InvalidMessage(f"a request is bytes, not {type(request).__name__}")
        if len(request) > self._bytes_max:
            raise InvalidMessage(f"request of {len(request)} bytes; at most {self._bytes_max}")
        return parse_request(request, from_broker=from_broker, group_and_count=self._group_and_count)

    def _lacks_room(self, ops: Sequence[Op]) -> bool:
        """Whether this leader's disk has no room for them. Any other replica says who leads, which may have
        room."""
        running = self._running
        full = running.driver.disk_full or (brings_new_work(ops) and running.scarce())
        return full and running.node.is_leader

    def _answer(self, request: bytes, ops: Sequence[Op], turn: Turn | None) -> Reply:
        running = self._running
        if self._lacks_room(ops):
            return ("disk_full", DISK_FULL_RETRY_S)
        answer: Future[Reply] = Future()
        # Before the turn's checks: the request is about the topics that these checks find, if the log still
        # has them.
        topics = running.replica.state.topics.topics
        about = None if turn is None else topics_of_commits(ops, topics)

        def queue() -> None:
            running.driver.submit(lambda: running.replica.submit(request, ops, answer.set_result, about))

        try:
            if turn is None:
                queue()
            elif (refused := turn(queue)) is not None:
                return refused
        except Overloaded as error:
            return ("overloaded", error.retry_after_s)
        except Closed:
            return NOT_RUNNING
        try:
            return answer.result(SUBMIT_WAIT_S)
        except FutureTimeout:
            return ("unknown",)
