"""Committing a batch write, which has no checkpoint: the decision is one entry in one broker group.

Each chunk in another group than the write's home group has an empty transaction of the same id there, and
follows its decision, as branches of transactions over several groups do. So one COMMIT in the home group
decides over all groups; a driver that dies before it leaves a write that was never done, and one that dies
after it leaves chunks whose fate is known, and which :func:`settle_batch` carries out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from escrowmq.actors.encoder import crc32c
from escrowmq.spark_integration.sink_commit import check_size, commit_together, require_open
from escrowmq.spark_integration.sink_intents import Attempt, Intent, epoch_id_of
from escrowmq.spark_integration.sink_link import SinkLink


def home_of(write_id: str, groups: int) -> int:
    """The group that decides over a write."""
    return crc32c(write_id.encode()) % groups


def commit_batch(
    link: SinkLink, write_id: str, attempts: Sequence[Attempt], references: Sequence[Mapping[int, int]] = ()
) -> None:
    """Make all of a write readable. Raises EpochConflict, MessageTooLarge, and what the link raises."""
    epoch_id = epoch_id_of(write_id, 0)
    by_group = _with_home_first(link, write_id, attempts)
    check_size(epoch_id, by_group, references)
    for gid, ids in by_group.items():
        require_open(link, gid, epoch_id, ids)
    for gid, ids in by_group.items():
        commit_together(link, gid, epoch_id, ids)
    settle_batch(link, write_id)  # what unsuccessful attempts have left


def settle_batch(link: SinkLink, write_id: str) -> tuple[int, int]:
    """Settle what is open of a write as its home group has it; returns how many were committed, and rolled
    back. What its home group has not decided is rolled back there first: so this ends a write that failed,
    finishes one whose COMMIT was decided before its driver could know, and must not meet one that runs.
    """
    home = home_of(write_id, link.info.groups)
    undecided = link.open_ids(home)
    if undecided:
        link.rollback(home, undecided)
    committed = rolled_back = 0
    for gid in range(link.info.groups):
        left = link.open_ids(gid) if gid != home else []
        states = link.states(home, left) if left else []
        wanted = [tx_id for tx_id, state in zip(left, states, strict=True) if state == "COMMITTED"]
        others = [tx_id for tx_id, state in zip(left, states, strict=True) if state != "COMMITTED"]
        if wanted:
            commit_together(link, gid, epoch_id_of(write_id, 0), wanted)
        if others:
            link.rollback(gid, others)
        committed, rolled_back = committed + len(wanted), rolled_back + len(others)
    return committed, rolled_back + len(undecided)


def _with_home_first(link: SinkLink, write_id: str, attempts: Sequence[Attempt]) -> dict[int, list[str]]:
    """All ids that each group is to decide: the home group first, over its own chunks and all others'."""
    by_group = Intent(0, epoch_id_of(write_id, 0), tuple(attempts)).ids()
    home = home_of(write_id, link.info.groups)
    own = by_group.pop(home, [])
    return {home: own + [tx_id for ids in by_group.values() for tx_id in ids], **by_group}
