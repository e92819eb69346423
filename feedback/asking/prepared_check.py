"""Before a check commits: whether all of the transaction is prepared, in every participating group.

The application's answer is about its own key, and it may have used that key again under another transaction
id: then "committed" is true, but this transaction was never prepared everywhere. Committing it would publish
a part of it. So every group is asked through its log. What is prepared cannot vanish before home decides, so
there is no race between this inquiry and the COMMIT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from escrowmq.feedback.brokers import GroupLeader
from escrowmq.replication.calling.answers import Standing
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode, TransactionState

#: Answers come within milliseconds; while a group elects a leader, it is asked again later.
PATIENCE_S = 2.0


@dataclass(slots=True)
class PreparedCheck:
    """``alone``: in one group, or from before format level 2. ``across``: over several groups and complete,
    with home's record of each. ``lacking``: why one cannot be committed. ``later``: a group has not
    answered."""

    alone: list[str] = field(default_factory=list)
    across: dict[str, int] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    later: list[str] = field(default_factory=list)


async def look(
    leaders: Mapping[int, GroupLeader], home: int, app: str, tx_ids: Sequence[str]
) -> PreparedCheck:
    """The states of these transactions, whose home is ``home``. Raises Unavailable if home does not
    answer."""
    found = PreparedCheck()
    if len(leaders) == 1:
        found.alone += tx_ids  # its leader checks the parts itself
        return found
    rows = await _inquire(leaders[home], app, dict.fromkeys(tx_ids, -1))
    if rows is None:
        found.alone += tx_ids
        return found
    wanted: dict[int, dict[str, int]] = {}
    for tx_id, row in rows.items():
        if row.state != TransactionState.PREPARE.value or not row.groups:
            found.alone.append(tx_id)
            continue
        found.across[tx_id] = row.home_index
        if not row.whole:
            found.lacking[tx_id] = row.lacking(home)
        for group in row.groups:
            wanted.setdefault(group, {})[tx_id] = row.home_index
    await asyncio.gather(*(_look_at(leaders, group, home, app, ids, found) for group, ids in wanted.items()))
    for tx_id in (*found.lacking, *found.later):
        found.across.pop(tx_id, None)
    found.later = [tx_id for tx_id in dict.fromkeys(found.later) if tx_id not in found.lacking]
    return found


async def _look_at(
    leaders: Mapping[int, GroupLeader],
    group: int,
    home: int,
    app: str,
    ids: Mapping[str, int],
    found: PreparedCheck,
) -> None:
    try:
        rows = await _inquire(leaders[group], app, ids)
    except Unavailable:
        rows = None
    for tx_id in ids:
        if rows is None:
            found.later.append(tx_id)
        elif not rows[tx_id].is_branch_of(home):
            found.lacking[tx_id] = rows[tx_id].lacking(group, home)


async def _inquire(leader: GroupLeader, app: str, ids: Mapping[str, int]) -> dict[str, Standing] | None:
    """None: the group does not know this question (yet). Raises Unavailable."""
    request = ops.inquire(app, list(ids), list(ids.values()))
    status, *rest = await leader.ask("submit", request, patience_s=PATIENCE_S)
    if status in ("unsupported", "malformed"):
        return None
    if status != "ok" or rest[0][0][0] != ResultCode.OK:
        raise Unavailable(f"group {leader.gid} answers {status} to INQUIRE", 0.5)
    return {tx_id: Standing(*row) for tx_id, row in zip(ids, rest[0][0][1], strict=True)}
