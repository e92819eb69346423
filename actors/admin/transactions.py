"""Open transactions as operators see them, and deciding one by hand.

A transaction that spans broker groups is decided in its home group; its entries elsewhere follow. A decision
by hand goes through the log like any other, signed ``operator:<name>``. If another decision was durable
before it, it loses: TransactionConflict then says what is recorded. COMMITTED requires that every
participating group has prepared all of its parts (NotFullyPrepared otherwise): each group is asked first,
through its log. What is prepared cannot vanish before home decides, so nothing can change between that look
and the COMMIT.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from escrowmq.actors.admin.types import TransactionDescription
from escrowmq.actors.client.call_arguments import check_by
from escrowmq.actors.client.router import Router, result_of
from escrowmq.replication.calling.answers import (
    AuditEntry,
    FoundTransaction,
    OpenTransactions,
    SettledTransaction,
    Standing,
)
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    NotFullyPrepared,
    OutcomeUnknown,
    TransactionSettled,
    Unavailable,
    UnknownTransaction,
    decided_otherwise,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import BY_HOME
from escrowmq.replication.model import OpenTransaction, ResultCode, TransactionState

#: Upper bound of ``limit``: an operator reads dozens, a script thousands.
LIST_MAX = 100_000
#: Pause between tries while another decision on the same transaction is under way, which takes milliseconds.
RETRY_S = 0.05

#: If several groups report different states of one transaction, the first of these counts.
_BY_RANK = (
    TransactionState.COMMITTED,
    TransactionState.ROLLBACK,
    TransactionState.PREPARE,
    TransactionState.UNKNOWN,
)


class TransactionAdmin:
    """Lists, shows and decides transactions through the leaders of all groups."""

    def __init__(self, router: Router, timeout_s: float) -> None:
        self._router, self._timeout_s = router, timeout_s

    def open_ones(
        self, state: TransactionState | str | None, app: str | None, topic: str | None, limit: int
    ) -> list[OpenTransaction]:
        """See :meth:`Admin.list_transactions`."""
        name = state.value if isinstance(state, TransactionState) else state
        if name not in (None, "PREPARE", "PARKED"):
            raise ConfigError(
                f"state must be PREPARE (all open ones) or PARKED, not {name!r}: settled ones are not listed"
            )
        if type(limit) is not int or not 1 <= limit <= LIST_MAX:
            raise ConfigError(f"limit must be 1 to {LIST_MAX}, not {limit!r}")
        found: dict[tuple[str, str], OpenTransaction] = {}
        answers: list[OpenTransactions] = self._everywhere("transactions", name, app, topic, limit)
        for answer in answers:
            for entry in answer.rows():
                # For a transaction that spans groups, the home group's entry stands for all of them.
                if entry.home_group < 0 or (entry.app, entry.tx_id) not in found:
                    found[entry.app, entry.tx_id] = entry
        return sorted(found.values(), key=lambda entry: entry.prepared_ms)[:limit]

    def states(self, app: str, tx_ids: Sequence[str]) -> list[TransactionState]:
        """See :meth:`Admin.transaction_states`. A branch may follow its home late, so a group that has the
        transaction decided outranks one that has it open."""
        answers: list[list[str]] = self._everywhere("tx_states", app, list(tx_ids))
        ranks = [state.value for state in _BY_RANK]
        return [_BY_RANK[min(map(ranks.index, said))] for said in zip(*answers, strict=True)]

    def show(self, tx_id: str, app: str | None) -> TransactionDescription:
        """See :meth:`Admin.show_transaction`."""
        known: dict[str, dict[int, tuple[TransactionState, OpenTransaction | None]]] = {}
        lives: dict[int, FoundTransaction] = {}
        for gid, found in enumerate(self._find(tx_id, app)):
            for one in found:
                known.setdefault(one.app, {})[gid] = one.state, one.open
                lives[gid] = one
        if not known:
            raise UnknownTransaction(tx_id)
        if len(known) > 1:
            raise ConfigError(f"transaction {tx_id!r} exists in apps {sorted(known)}: say which with app=...")
        ((found_app, by_group),) = known.items()
        state = self._state_of(by_group)
        opened = {gid: entry for gid, (_, entry) in by_group.items() if entry is not None}
        checked_ms = max(one.checked_ms for one in lives.values()) or None
        if state is TransactionState.PREPARE:
            return TransactionDescription(found_app, tx_id, state, opened, checked_ms=checked_ms)
        settled = {gid: one.settled for gid, one in lives.items() if one.settled is not None}
        by, at_ms = self._decision_of(found_app, tx_id, state, settled)
        checked_ms = max((one.checked_ms for one in settled.values()), default=0) or checked_ms
        return TransactionDescription(found_app, tx_id, state, opened, by, at_ms, settled, checked_ms)

    def _decision_of(
        self,
        app: str,
        tx_id: str,
        state: TransactionState,
        settled: Mapping[int, SettledTransaction],
    ) -> tuple[str | None, int | None]:
        """Who decided, and when, according to the group that decided; branches only followed. If that is not
        recorded: the newest decision on this id that no producer made, since the id may have been used
        before."""
        for one in settled.values():
            if not one.by.startswith(BY_HOME):
                return one.by, one.decided_ms
        audits: list[list[AuditEntry]] = self._everywhere("audit")
        named = [entry for audit in audits for entry in audit if entry.tx_id == tx_id and entry.app == app]
        newest = max(named, key=lambda entry: entry.at_ms, default=None)
        if newest is None or newest.outcome != state.value:
            return None, None
        return newest.by, newest.at_ms

    @staticmethod
    def _state_of(
        by_group: dict[int, tuple[TransactionState, OpenTransaction | None]],
    ) -> TransactionState:
        """The home group's state; a group that has settled the transaction learned the outcome from there."""
        settled = [state for state, entry in by_group.values() if entry is None]
        home = [entry for _, entry in by_group.values() if entry is not None and entry.home_group < 0]
        return settled[0] if settled and not home else TransactionState.PREPARE

    def resolve(
        self, tx_id: str, state: TransactionState, app: str | None, by: str
    ) -> TransactionDescription:
        """See :meth:`Admin.resolve_transaction`."""
        if state not in (TransactionState.COMMITTED, TransactionState.ROLLBACK):
            raise ConfigError(f"decide COMMITTED or ROLLBACK, not {state}")
        check_by(by)
        shown = self.show(tx_id, app)
        homes, branches = self._homes(shown)
        fresh = [self._resolve_at(gid, shown.app, tx_id, state, by) for gid in sorted(homes)]
        for gid, entry in sorted(branches.items()):
            if entry.home_group not in homes:
                self._resolve_branch(gid, entry, state, by)
            elif all(fresh):  # home tells it; sooner if we do. Not what it had decided before
                self._decide(gid, shown.app, tx_id, state, by, entry.home_index, entry.home_group)
        if not shown.open:
            for gid, found in enumerate(self._find(tx_id, shown.app)):
                if found:  # settled: decide there, so that it can report if the other decision is recorded
                    self._decide(gid, shown.app, tx_id, state, by)
                    break
        return self.show(tx_id, shown.app)

    def recheck(self, tx_id: str, app: str | None) -> TransactionDescription:
        """See :meth:`Admin.recheck_transaction`."""
        shown = self.show(tx_id, app)
        if not shown.open:
            raise TransactionSettled(tx_id, shown.state.value)
        for gid, entry in shown.open.items():
            if entry.parked and entry.home_group < 0:
                asked = self._router.leader_call(
                    gid, "check_again", shown.app, tx_id, timeout_s=self._timeout_s
                )
                try:
                    result_of(asked, self._timeout_s)
                except OutcomeUnknown:
                    raise Unavailable(
                        f"the leader of group {gid} does not answer; repeat the call, which is harmless"
                    ) from None
        return shown

    @staticmethod
    def _homes(shown: TransactionDescription) -> tuple[set[int], dict[int, OpenTransaction]]:
        """The groups that have the home record open, and the open branches by group."""
        homes = {gid for gid, entry in shown.open.items() if entry.home_group < 0}
        return homes, {gid: entry for gid, entry in shown.open.items() if entry.home_group >= 0}

    def _resolve_at(self, home: int, app: str, tx_id: str, state: TransactionState, by: str) -> bool:
        """Decides in the home group; False: it was already decided this way. A COMMIT first checks every
        participating group."""
        row = self._standing(home, app, tx_id, -1)
        if row.state != TransactionState.PREPARE.value or not row.groups:
            return self._decide(home, app, tx_id, state, by)
        if state is TransactionState.COMMITTED:
            if not row.whole:
                raise NotFullyPrepared(tx_id, row.lacking(home))
            for group in row.groups:
                branch = self._standing(group, app, tx_id, row.home_index)
                if not branch.is_branch_of(home):
                    raise NotFullyPrepared(tx_id, branch.lacking(group, home))
        return self._decide(home, app, tx_id, state, by, row.home_index)

    def _resolve_branch(self, gid: int, entry: OpenTransaction, state: TransactionState, by: str) -> None:
        """Decides a branch whose home did not tell of an open record. If it has one all the same (the leader
        that told was deposed, or was asked before the PREPARE), home decides. If home has a decision that
        this branch has not carried out, that one stands. Otherwise the branch can only be rolled back."""
        app, tx_id, index = entry.app, entry.tx_id, entry.home_index
        row = self._standing(entry.home_group, app, tx_id, index)
        if row.state == TransactionState.PREPARE.value and row.home_group < 0:
            self._resolve_at(entry.home_group, app, tx_id, state, by)
            row = self._standing(entry.home_group, app, tx_id, index)
        decided = row.state in ("COMMITTED", "ROLLBACK") and gid in row.groups
        if decided and row.state != state.value:
            raise TransactionSettled(tx_id, row.state)
        if state is TransactionState.COMMITTED and not decided:
            raise NotFullyPrepared(tx_id, f"its home group {entry.home_group} has no record of it")
        self._decide(gid, app, tx_id, state, by, index, entry.home_group)

    def _standing(self, gid: int, app: str, tx_id: str, home_index: int) -> Standing:
        """The transaction's standing in a group, for the entry at this index of the home group's log."""
        request = ops.inquire(app, [tx_id], [home_index])
        ((_, rows),) = result_of(self._router.submit(gid, request, self._timeout_s), self._timeout_s)
        return Standing(*rows[0])

    def _find(self, tx_id: str, app: str | None) -> list[list[FoundTransaction]]:
        """For each group, the transactions with this id there."""
        return self._everywhere("find_transaction", tx_id, app)

    def _decide(
        self,
        gid: int,
        app: str,
        tx_id: str,
        state: TransactionState,
        by: str,
        home_index: int | None = None,
        home_group: int = -1,
    ) -> bool:
        """False: it was already decided this way."""
        commits, signed = state is TransactionState.COMMITTED, f"operator:{by}"
        build = ops.commit if commits else ops.rollback
        request = build(app, [tx_id], signed, [] if home_index is None else [home_index], home_group)
        until = self._router.clock() + self._timeout_s
        while True:
            (result,) = result_of(self._router.submit(gid, request, self._timeout_s), self._timeout_s)
            code: int = result[0]
            info: Any = result[1] if len(result) > 1 else None
            if code == ResultCode.PARTIAL:
                _, code, info = info[0]
            if code != ResultCode.RETRY or self._router.clock() >= until:
                break
            time.sleep(RETRY_S)  # another decision on it is under way, perhaps home's own
        if code in (ResultCode.OK, ResultCode.DUPLICATE):
            return code == ResultCode.OK
        if code == ResultCode.TX_CONFLICT:
            raise decided_otherwise(tx_id, str(info))
        if code == ResultCode.UNKNOWN_TX:
            raise UnknownTransaction(tx_id)
        if code == ResultCode.NOT_PREPARED:
            raise NotFullyPrepared(tx_id, f"parts of it are missing in group {gid}")
        if code == ResultCode.RETRY:
            raise Unavailable(f"another decision on {tx_id!r} is under way in group {gid}", 1.0)
        if code == ResultCode.MALFORMED:
            raise InvalidMessage(str(info))
        raise EscrowMQError(f"the broker refused to decide {tx_id!r}: {ResultCode(code).name} {info!r}")

    def _everywhere(self, method: str, *args: Any) -> list[Any]:
        """The answer of every group's leader, in the order of groups."""
        router, timeout_s = self._router, self._timeout_s
        futures = [
            router.leader_call(gid, method, *args, timeout_s=timeout_s) for gid in range(router.info.groups)
        ]
        return [result_of(future, timeout_s) for future in futures]
