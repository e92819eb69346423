"""Damage to a replica's state or vote, as its disk shows it, whether or not anybody has found it.

A replica with such damage goes on until a scrub or a restart reads the file. Then it has to copy the files of
a leader, and until it has done so, it elects nobody, although its log may have every entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.log.vote import NAME as VOTE_FILE
from escrowmq.replication.log.vote import VoteFile
from escrowmq.replication.replica.damage import damage_in

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica


def has_damaged_state(replica: SimReplica) -> bool:
    """Whether a snapshot or a run file on its disk is damaged. A scrub finds that within seconds.

    One file is enough: both snapshots may name the same run file, and retention then removes the log before
    them.
    """
    disk = replica.disk.frozen()
    names = [name for name in disk.names() if name.endswith((".snap", ".runs"))]
    return any(damage_in(name, disk.open(name)) is not None for name in names)


def has_damaged_vote(replica: SimReplica) -> bool:
    """Whether both slots of its vote file are damaged. Only a restart finds that; the next vote mends it."""
    disk = replica.disk.frozen()
    if not disk.exists(VOTE_FILE):
        return False
    try:
        VoteFile(disk)
    except CorruptLog:
        return True
    return False
