"""Calls of share consumers at a replica in virtual time. The desk decides, and the broker's code reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.host.sharing import Sharing
from escrowmq.replication.replica.fetching import in_bytes
from escrowmq.replication.replica.lease_dispatcher import AcquireRequest, HandedOut
from tests.sim.sharing.records import leadership

if TYPE_CHECKING:
    from escrowmq.replication.host.running_replica import RunningReplica
    from tests.sim.group.replica import SimReplica

METHODS = frozenset(("share_acquire", "share_extend", "share_release"))
#: Shorter than any group may set it, so that leases end within a schedule.
LEASE_S = 0.6


class Told(list[Any]):
    """Rows, or places, and the leader that told them: the history wants to know."""

    def __init__(self, found: Iterable[Any], leader: str) -> None:
        super().__init__(found)
        self.leader = leader


class _Sharing(Sharing):
    """Without its threads."""

    def __init__(self, running: RunningReplica) -> None:
        self._running, self._desk = running, running.replica.lease_dispatcher


def share_call(
    replica: SimReplica,
    running: RunningReplica,
    method: str,
    args: tuple[Any, ...],
    answer: Callable[[Any], None],
) -> None:
    """One call; see ``calling/answers.py``."""
    sharing = _Sharing(running)

    if method != "share_acquire":
        status, *rest = getattr(sharing, method.removeprefix("share_"))(*args)
        answer(("ok", Told(rest[0], leadership(replica))) if status == "ok" else (status, *rest))
        return
    group, member, topics, wanted, max_bytes, _, wait_s, call, received = args

    def read(leader: str, handed_out: Sequence[HandedOut]) -> None:
        try:
            rows = sharing._read(group, member, handed_out, in_bytes)
        except Unavailable:  # it is being mended
            answer(("unknown",))
        else:
            answer(("ok", Told(rows, leader), LEASE_S, 0.0, ask.number))

    def done(reply: Reply) -> None:
        if reply[0] != "ok":
            answer(reply)
            return

        # Reading is another thread's work, and may end the process.
        replica.later(0.0, partial(read, leadership(replica), reply[1]))

    now_ms = running.replica.monotonic_ms()
    until_ms = now_ms + int(wait_s * 1000)
    lease_ms = int(LEASE_S * 1000)
    ask = AcquireRequest(
        group, member, tuple(topics), wanted, max_bytes, lease_ms, until_ms, done, call, received
    )
    running.replica.lease_dispatcher.acquire(ask, now_ms)
