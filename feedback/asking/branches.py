"""Branch transactions of one broker group: the parts of transactions that another group decides.

A transaction over several groups has one record of its decision, in its home group. A branch follows
that record, and nothing else: its producer is never asked, the topic's policy does not apply to it, and
an undecided home leaves it open without counting a check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from escrowmq.feedback.brokers import GroupLeader
from escrowmq.feedback.config import FeedbackConfig
from escrowmq.feedback.policy import Verdict, judge_home
from escrowmq.replication.calling.answers import LockedRow, OpenTransactions
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.model import TransactionState

#: Open transactions looked through for branches while no producer is online.
SWEEP_ROWS_MAX = 1_000
#: Answers come within milliseconds; a home group that elects a leader is asked again later.
PATIENCE_S = 2.0


class Branches:
    """Finds out what the home groups decided. ``settle(tx_id, verdict)`` takes it to the log."""

    def __init__(
        self,
        gid: int,
        app: str,
        topic: str,
        leaders: Mapping[int, GroupLeader],
        settle: Callable[[str, Verdict], bool],
        config: FeedbackConfig,
    ) -> None:
        self._gid, self._app, self._topic = gid, app, topic
        self._leaders, self._settle = leaders, settle
        self._config = config
        self._locked: dict[str, int] = {}  # transaction -> home group

    def locked(self, row: LockedRow) -> None:
        """A branch was locked here. Beyond the bound it is left to its lease, and comes back."""
        if len(self._locked) < self._config.settle_queue_max:
            self._locked[row.tx_id] = row.home_group

    def waiting(self) -> bool:
        """Whether ``step`` has something to do."""
        return bool(self._locked)

    async def step(self) -> None:
        """Resolve what was locked; the undecided are given back (due again in a second)."""
        locked, self._locked = self._locked, {}
        await self._ask(locked.items(), release=True)

    async def sweep(self) -> None:
        """Nothing is locked while no producer is online, but decisions that were taken still hold."""
        _, found = await self._leaders[self._gid].ask(
            "transactions", None, self._app, self._topic, SWEEP_ROWS_MAX, patience_s=PATIENCE_S
        )
        opened: OpenTransactions = found
        homes = zip(opened.tx_ids, opened.home_groups, strict=True)
        await self._ask(((tx_id, home) for tx_id, home in homes if home != -1), release=False)

    async def _ask(self, branches: Iterable[tuple[str, int]], *, release: bool) -> None:
        """All home groups at once, so that one without a leader holds up no other."""
        by_home: dict[int, list[str]] = {}
        for tx_id, home in branches:
            by_home.setdefault(home, []).append(tx_id)
        asking = [self._ask_home(home, ids, release=release) for home, ids in by_home.items()]
        for outcome in await asyncio.gather(*asking, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _ask_home(self, home: int, ids: Sequence[str], *, release: bool) -> None:
        leader = self._leaders.get(home)
        if leader is None:
            raise EscrowMQError(f"transaction {ids[0]!r} names home group {home}, which does not exist")
        _, states = await leader.ask("tx_states", self._app, list(ids), patience_s=PATIENCE_S)
        for tx_id, state in zip(ids, states, strict=True):
            verdict = judge_home(TransactionState(state))
            if release or verdict is not Verdict.RELEASE:
                self._settle(tx_id, verdict)
