"""Which transaction over several groups a record is: (id, home group, home index), and how it stands.

An id may come again after its group has forgotten it, and a branch of the first one may then still be open
somewhere. So the log index at which home opened its record belongs to the identity, and the group whose log
that is: PREPAREs and decisions of branches carry both, and do nothing to a record with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.replication.calling.answers import Standing
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.open_table import OpenTx
from escrowmq.replication.state.transactions import STATE_OF, AppTransactions

_CONFLICT = [int(ResultCode.TX_CONFLICT), "PREPARE"]


def another(
    record: OpenTx, home_group: int, home_index: int, participants: tuple[int, ...]
) -> list[Any] | None:
    """Why a PREPARE is none of the open transaction ``record``; None: it may be.

    A record of a lower home index is an older transaction that was forgotten at home: it is rolled back once
    it asks there, so RETRY. One of a higher home index: then this PREPARE is the late one.
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
    """The result of a PREPARE at home of several groups: also its own log index, if it opened all of them.
    Else that, and behind it of each transaction where it was opened, by this PREPARE or an earlier one of it;
    -1 for those that are refused, whatever else has their ids."""
    if all_fresh:
        return [0, index]
    refused = {problem[0] for problem in problems}
    indexes = [index]
    for place, tx_id in enumerate(tx_ids):
        record = None if place in refused else table.open.get(tx_id)
        indexes.append(-1 if record is None else record.log_index)
    return [int(ResultCode.PARTIAL), problems, indexes] if problems else [0, indexes]


def standing(table: AppTransactions, tx_id: str, home_index: int) -> Standing:
    """How (id, home index) stands here; -1: whatever has this id."""
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
