"""The identity of a record of a transaction over several groups: (id, home group, home index), and its state.

An id may be used again after its group has forgotten it, while a branch of its first transaction is still
open somewhere. So the identity includes the log index at which home opened its record, and the group of that
log: PREPAREs and decisions of branches carry both, and do nothing to a record that has others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.replication.calling.answers import Standing
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.open_table import OpenTx
from escrowmq.replication.state.transactions import STATE_OF, AppTransactions, TransactionTable

_CONFLICT = [int(ResultCode.TX_CONFLICT), "PREPARE"]


def another(
    record: OpenTx, home_group: int, home_index: int, participants: tuple[int, ...]
) -> list[Any] | None:
    """Why a PREPARE does not belong to the open transaction ``record``; None: it may.

    A record with a lower home index is an older transaction that home has forgotten: it will be rolled back
    when it asks there, so RETRY. With a higher home index, this PREPARE is the late one.
    """
    if record.home_group != home_group or record.participants != participants:
        return _CONFLICT
    if record.home_index == home_index:
        return None
    if 0 <= record.home_index < home_index:
        return [int(ResultCode.RETRY), None]
    return _CONFLICT


def with_home_indexes(
    table: AppTransactions, tx_ids: Sequence[str], problems: list[list[Any]], index: int, *, all_fresh: bool
) -> list[Any]:
    """The result of a PREPARE at home of several groups, or of ids that the application gave: its client must
    know whether they were open before. If it opened all its transactions: also its own log
    index. Otherwise that index and then, for each transaction, the log index at which it was opened, by this
    PREPARE or an earlier one; -1 for those that are refused, whatever else has their ids."""
    if all_fresh:
        return [0, index]
    refused = {problem[0] for problem in problems}
    indexes = [index]
    for place, tx_id in enumerate(tx_ids):
        record = None if place in refused else table.open.get(tx_id)
        indexes.append(-1 if record is None else record.log_index)
    return [int(ResultCode.PARTIAL), problems, indexes] if problems else [0, indexes]


def standing(table: AppTransactions, tx_id: str, home_index: int) -> Standing:
    """State of (id, home index) in this group; -1: of whatever has this id."""
    record = table.open.get(tx_id)
    if record is not None and home_index in (-1, record.home_record):
        have, groups = len(record.digests), record.participants
        return Standing("PREPARE", record.home_record, have, record.parts, record.home_group, list(groups))
    decided = table.decided.get(tx_id)
    if decided is not None and home_index in (-1, decided.home_index):
        state = STATE_OF[decided.outcome].value
        return Standing(state, decided.home_index, groups=list(decided.waiting))
    outcome = table.outcome(tx_id)
    return Standing("UNKNOWN" if outcome is None else STATE_OF[outcome].value)


def standings(transactions: TransactionTable, asked: tuple[str, Sequence[str], Sequence[int]]) -> list[Any]:
    """The result of an INQUIRE. It changes nothing, and is in the log because a deposed leader that answered
    from its state could be wrong."""
    app, tx_ids, home_index = asked
    table = transactions.look(app)
    return [0, [standing(table, tx_id, index) for tx_id, index in zip(tx_ids, home_index, strict=True)]]
