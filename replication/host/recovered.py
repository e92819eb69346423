"""What opening a replica's directory has found, from which the replica is built."""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.log.peer_marks import PeerMarks
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.state.machine import StateMachine


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening found on the disk: the log, the snapshots, the state of the newest good snapshot, and the
    incarnations of the peers."""

    disk: Disk
    journal: SegmentJournal
    checkpoints: Checkpoints
    state: StateMachine
    peers: PeerMarks

    def close(self) -> None:
        """Release the files; for an opening that fails."""
        self.journal.close()
        self.peers.close()
