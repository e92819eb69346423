"""Transaction checks that have come due: leases of them for feedback actors. Leader only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.replication.calling.answers import LockedChecks, Reply
from escrowmq.replication.host.running import RunningReplica
from escrowmq.replication.state.machine import StateMachine

#: What one answer brings, whatever its caller asks for.
DUE_MAX = 10_000
LEASE_S_MAX = 86_400.0
#: A check is put off by no longer than this.
WAIT_MS_MAX = 60_000


class DueChecks:
    """Due checks of one replica. Thread-safe."""

    def __init__(self, running: RunningReplica) -> None:
        self._running, self._replica = running, running.replica

    def lock_due(self, app: str, topic: str, max_n: int, lease_s: float, wait_s: float, owner: str) -> Reply:
        """``("ok", LockedChecks)``.

        Waits up to ``wait_s`` for one to come due. No other owner gets it until its lease ends.
        """
        running, state = self._running, self._replica.state
        nothing: Reply = ("ok", [])
        answer = nothing
        max_n, lease_s = min(max_n, DUE_MAX), min(lease_s, LEASE_S_MAX)

        def attempt() -> Reply | None:
            nonlocal answer
            answer = running.led(lambda: lock_due(state, app, topic, max_n, lease_s, owner, running.now_ms()))
            return None if answer == nothing else answer

        found = running.checks_due.wait_for(attempt, wait_s) or answer
        # The columns are made in this thread: the replica's own has more to do.
        return ("ok", LockedChecks.of(found[1])) if found[0] == "ok" else found

    def release_locks(
        self, app: str, topic: str, tx_ids: Sequence[str], owner: str, waits_ms: Sequence[int] = ()
    ) -> Reply:
        """Give leases back without an answer; due again in a second, or after as long as ``waits_ms``
        says."""
        running, due = self._running, self._replica.state.due
        waits = [min(max(int(wait), 0), WAIT_MS_MAX) for wait in waits_ms]
        return running.led(lambda: due.release(app, tx_ids, owner, running.now_ms(), waits))

    def open_topics(self, app: str) -> Reply:
        """``("ok", [topic, ...])`` that have open transactions of ``app``."""

        def read() -> list[str]:
            table = self._replica.state.transactions.apps.get(app)
            return [] if table is None else [t for t, n in table.open_by_topic.items() if n > 0]

        return self._running.led(read)


def lock_due(
    state: StateMachine, app: str, topic: str, max_n: int, lease_s: float, owner: str, now_ms: int
) -> list[tuple[Any, ...]]:
    """Lease due checks to ``owner``; rows with the fields of ``LockedRow``. In the applying thread."""
    known = state.topics.topics.get(topic)
    rolls_back = known is not None and known.info.on_check_exhausted == "rollback"
    check_max = known.info.check_max if known else 0
    return [
        (
            *(tx, r.query_id, r.prepared_ms, r.checks, r.home_group, rolls_back and r.checks >= check_max),
            *(r.instance, r.newest_index if state.level > 1 else 0, max(now_ms - r.prepared_ms, 0)),
        )
        for tx, r in state.due.lock(app, topic, max_n, owner, int(lease_s * 1000), now_ms)
    ]
