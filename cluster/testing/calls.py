"""How clients reach the brokers of a cluster in memory, and the failures that a test plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from escrowmq.actors.broker.broker_calls import BrokerCalls
from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer
from escrowmq.cluster.testing.parking import PendingCall
from escrowmq.cluster.testing.stage import Stage
from escrowmq.replication.calling.answers import Leadership, Reply
from escrowmq.replication.errors import (
    ConfigError,
    DiskFull,
    EscrowMQError,
    NotSupported,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from escrowmq.replication.format.codec import decode_ops
from escrowmq.replication.format.operation import OpType

#: What a test can make fail -> the types of the operations concerned.
KINDS = {
    "send": (OpType.MESSAGE, OpType.SCHEDULED),
    "prepare": (OpType.PREPARE,),
    "commit": (OpType.COMMIT,),
    "rollback": (OpType.ROLLBACK,),
    "cancel": (OpType.CANCEL,),
    "ack": (OpType.SHARE_ACK,),
    "nack": (OpType.NACK,),
}
#: A test can also make this call fail.
COMMIT_OFFSETS = "commit_offsets"
#: The broker's answer to each attempt. The client retries until its own time-out.
ANSWERS: dict[type[EscrowMQError], Reply] = {
    Unavailable: Leadership(False, None, 0).refusal(),
    Overloaded: ("overloaded", 1.0),
    DiskFull: ("disk_full", 1.0),
}


@dataclass(slots=True)
class PlannedFailure:
    """The next request of this kind fails. ``request``: that request, as soon as it has arrived. The client
    repeats it, and it fails each time."""

    kind: str
    error: type[EscrowMQError]
    carried_out: bool
    request: Any = None
    done: bool = False


class Network:
    """Carries the calls of all clients of one cluster to its brokers."""

    def __init__(self, stage: Stage, brokers: Sequence[BrokerCalls]) -> None:
        self._stage, self.brokers = stage, brokers
        self._planned: list[PlannedFailure] = []
        #: Whether no broker can be reached.
        self.down = False

    def plan(self, kind: str, error: type[EscrowMQError], carried_out: bool) -> None:
        """See ``InMemoryCluster.fail_next``."""
        if kind not in (*KINDS, COMMIT_OFFSETS):
            raise ConfigError(f"what must be one of {', '.join((*KINDS, COMMIT_OFFSETS))}, not {kind!r}")
        if error is not OutcomeUnknown and error not in ANSWERS:
            known: list[type[EscrowMQError]] = [OutcomeUnknown, *ANSWERS]
            names = ", ".join(sorted(error_.__name__ for error_ in known))
            raise ConfigError(f"error must be one of {names}, not {error!r}")
        if carried_out and error is not OutcomeUnknown:
            raise ConfigError(f"{error.__name__} means that nothing was done; leave carried_out out")
        self._planned.append(PlannedFailure(kind, error, carried_out))

    def call(
        self,
        gid: int,
        rid: int,
        method: str,
        args: tuple[Any, ...],
        done: OnAnswer,
        dropped: Callable[[], bool],
    ) -> None:
        """See ``ReplicaCalls.call``. ``dropped()``: whether the client no longer waits for the answer."""
        with self._stage.lock:
            if rid == SUPERVISOR_RID:
                done(None, NotSupported(f"a cluster in memory has no supervisor, so it cannot do {method}"))
            elif self.down:
                done(None, ConnectionError("the test has made the brokers unreachable"))
            elif rid != 0 or not 0 <= gid < len(self.brokers):
                done(None, ConnectionError(f"there is no replica {rid} of group {gid}"))
            else:
                self._execute(gid, method, args, done, dropped)

    def _execute(
        self, gid: int, method: str, args: tuple[Any, ...], done: OnAnswer, dropped: Callable[[], bool]
    ) -> None:
        planned = self._failure_of(method, args) if self._planned else None
        if planned is not None:
            if planned.error is not OutcomeUnknown:
                done(ANSWERS[planned.error], None)
                return
            if planned.done or not planned.carried_out:
                return  # no answer comes
            planned.done, done = True, _no_answer
        bound = getattr(self.brokers[gid], method)
        PendingCall(self._stage, bound, args, done, dropped).attempt()

    def _failure_of(self, method: str, args: tuple[Any, ...]) -> PlannedFailure | None:
        if method == "submit":
            request = args[0]
            kinds = {op.type for op in decode_ops(request)}
        elif method == COMMIT_OFFSETS:
            request, kinds = args, set()
        else:
            return None
        for planned in self._planned:
            if planned.request is request:
                return planned
        for planned in self._planned:
            meant = planned.kind == method or not kinds.isdisjoint(KINDS.get(planned.kind, ()))
            if planned.request is None and meant:
                planned.request = request
                return planned
        return None


def _no_answer(answer: Any, error: BaseException | None) -> None: ...


class MemoryCalls:
    """``ReplicaCalls`` of one client."""

    def __init__(self, network: Network) -> None:
        self._network, self._closed = network, False

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """See ``ReplicaCalls``."""
        if not self._closed:
            self._network.call(gid, rid, method, args, done, self._dropped)

    def close(self) -> None:
        """See ``ReplicaCalls``."""
        self._closed = True

    def _dropped(self) -> bool:
        return self._closed
