"""Open transactions as operators see them, and deciding one by hand.

A transaction that spans broker groups is decided in its home group; the entries elsewhere follow. A
decision by hand goes through the log like any other, signed ``operator:<name>``, and loses against one
that was durable before it: then TransactionConflict says what is recorded.
"""

from __future__ import annotations

from typing import Any

from escrowmq.actors.admin.types import TransactionDescription
from escrowmq.actors.client.router import Router, result_of
from escrowmq.replication.calling.answers import FoundTransaction, OpenTransactions
from escrowmq.replication.errors import (
    ConfigError,
    EscrowMQError,
    InvalidMessage,
    TransactionConflict,
    UnknownTransaction,
)
from escrowmq.replication.format import ops
from escrowmq.replication.model import OpenTransaction, ResultCode, TransactionState

#: Listed at most: an operator reads dozens, a script thousands.
LIST_MAX = 100_000
#: Longest name of an operator in the audit trail.
OPERATOR_CHARS_MAX = 100


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
                # Of a transaction that spans groups, the home group's entry stands for all.
                if entry.home_group < 0 or (entry.app, entry.tx_id) not in found:
                    found[entry.app, entry.tx_id] = entry
        return sorted(found.values(), key=lambda entry: entry.prepared_ms)[:limit]

    def show(self, tx_id: str, app: str | None) -> TransactionDescription:
        """See :meth:`Admin.show_transaction`."""
        known: dict[str, dict[int, tuple[TransactionState, OpenTransaction | None]]] = {}
        for gid, found in enumerate(self._find(tx_id, app)):
            for one in found:
                known.setdefault(one.app, {})[gid] = one.state, one.open
        if not known:
            raise UnknownTransaction(tx_id)
        if len(known) > 1:
            raise ConfigError(f"transaction {tx_id!r} exists in apps {sorted(known)}: say which with app=...")
        ((found_app, by_group),) = known.items()
        return TransactionDescription(
            found_app,
            tx_id,
            self._state_of(by_group),
            {gid: entry for gid, (_, entry) in by_group.items() if entry is not None},
        )

    @staticmethod
    def _state_of(
        by_group: dict[int, tuple[TransactionState, OpenTransaction | None]],
    ) -> TransactionState:
        """The home group's word; a group that has settled it has it from there."""
        settled = [state for state, entry in by_group.values() if entry is None]
        home = [entry for _, entry in by_group.values() if entry is not None and entry.home_group < 0]
        return settled[0] if settled and not home else TransactionState.PREPARE

    def resolve(
        self, tx_id: str, state: TransactionState, app: str | None, by: str
    ) -> TransactionDescription:
        """See :meth:`Admin.resolve_transaction`."""
        if state not in (TransactionState.COMMITTED, TransactionState.ROLLBACK):
            raise ConfigError(f"decide COMMITTED or ROLLBACK, not {state}")
        if type(by) is not str or not 0 < len(by) <= OPERATOR_CHARS_MAX:
            raise ConfigError(f"by must name who decides in 1 to {OPERATOR_CHARS_MAX} characters, not {by!r}")
        shown = self.show(tx_id, app)
        branches = [gid for gid, entry in shown.open.items() if entry.home_group >= 0]
        homes = {entry.home_group for gid, entry in shown.open.items() if entry.home_group >= 0}
        homes |= {gid for gid, entry in shown.open.items() if entry.home_group < 0}
        # Home first: it decides. Only then may the branches follow, and a group without an entry of it
        # (settled already) is asked too, so that it can say if the other decision stands.
        for gid in [*sorted(homes), *sorted(set(branches) - homes)] or self._settled_at(tx_id, shown.app):
            self._decide(gid, shown.app, tx_id, state, by)
        return self.show(tx_id, shown.app)

    def _settled_at(self, tx_id: str, app: str) -> list[int]:
        return [gid for gid, found in enumerate(self._find(tx_id, app)) if found][:1]

    def _find(self, tx_id: str, app: str | None) -> list[list[FoundTransaction]]:
        """By group: whose id it is there."""
        return self._everywhere("find_transaction", tx_id, app)

    def _decide(self, gid: int, app: str, tx_id: str, state: TransactionState, by: str) -> None:
        build = ops.commit if state is TransactionState.COMMITTED else ops.rollback
        request = build(app, [tx_id], f"operator:{by}")
        (result,) = result_of(self._router.submit(gid, request, self._timeout_s), self._timeout_s)
        code: int = result[0]
        info: Any = result[1] if len(result) > 1 else None
        if code == ResultCode.PARTIAL:
            _, code, info = info[0]
        if code in (ResultCode.OK, ResultCode.DUPLICATE):
            return
        if code == ResultCode.TX_CONFLICT:
            raise TransactionConflict(tx_id, str(info))
        if code == ResultCode.UNKNOWN_TX:
            raise UnknownTransaction(tx_id)
        if code == ResultCode.MALFORMED:
            raise InvalidMessage(str(info))
        raise EscrowMQError(f"the broker refused to decide {tx_id!r}: {ResultCode(code).name} {info!r}")

    def _everywhere(self, method: str, *args: Any) -> list[Any]:
        """The answer of every group's leader, in order of groups."""
        router, timeout_s = self._router, self._timeout_s
        futures = [
            router.leader_call(gid, method, *args, timeout_s=timeout_s) for gid in range(router.info.groups)
        ]
        return [result_of(future, timeout_s) for future in futures]
