"""Calls of share consumers at a replica in virtual time. The desk decides, and the broker's code reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.host.sharing import Sharing
from escrowmq.replication.replica.fetching import in_bytes
from escrowmq.replication.replica.share_desk import Ask
from tests.sim.sharing.records import leadership

if TYPE_CHECKING:
    from escrowmq.replication.host.running import RunningReplica
    from tests.sim.replica import SimReplica

METHODS = frozenset(("share_acquire", "share_extend", "share_release"))
#: Shorter than any group may set it, so that leases end within a schedule.
LEASE_S = 0.6


class Told(list[Any]):
    """Rows, or places, and the leader that told them: the history wants to know."""

    leader: str


class _Sharing(Sharing):
    """Without its threads."""

    def __init__(self, running: RunningReplica) -> None:
        self._running, self._desk = running, running.replica.share_desk


def share_call(
    replica: SimReplica,
    running: RunningReplica,
    method: str,
    args: tuple[Any, ...],
    answer: Callable[[Any], None],
) -> None:
    """One call; see ``calling/share_answers.py``."""
    sharing = _Sharing(running)

    def told(found: list[Any]) -> Told:
        rows = Told(found)
        rows.leader = leadership(replica)
        return rows

    if method != "share_acquire":
        status, *rest = getattr(sharing, method.removeprefix("share_"))(*args)
        answer(("ok", told(rest[0])) if status == "ok" else (status, *rest))
        return
    group, member, topics, wanted, max_bytes, _, wait_s = args

    def done(reply: Reply) -> None:
        if reply[0] != "ok":
            answer(reply)
            return

        def read() -> None:
            try:
                answer(("ok", told(sharing._read(group, member, reply[1], in_bytes)), LEASE_S, 0.0))
            except Unavailable:  # it is being mended
                answer(("unknown",))

        replica.guarded(read)

    now_ms = running.lease_ms()
    until_ms = now_ms + int(wait_s * 1000)
    ask = Ask(group, member, tuple(topics), wanted, max_bytes, int(LEASE_S * 1000), until_ms, done)
    running.replica.share_desk.acquire(ask, now_ms)
