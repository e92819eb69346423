"""Everything that answers a broker's callers once its replica runs: one part per subject."""

from __future__ import annotations

from escrowmq.actors.broker.group_service import GroupService
from escrowmq.replication.host.due_checks import DueChecks
from escrowmq.replication.host.inspection import Inspection
from escrowmq.replication.host.instruments import Instruments
from escrowmq.replication.host.member_changes import MemberChanges
from escrowmq.replication.host.offers import Offers
from escrowmq.replication.host.reads import Reads
from escrowmq.replication.host.requests import Requests
from escrowmq.replication.host.running import RunningReplica
from escrowmq.replication.host.watching import Watching


class Parts:
    """The parts of one running replica. Thread-safe, as each of them is."""

    def __init__(self, running: RunningReplica) -> None:
        self.running = running
        self.requests = Requests(running)
        self.reads = Reads(running)
        self.due_checks = DueChecks(running)
        self.inspection = Inspection(running)
        self.instruments = Instruments(running, self.requests.counts)
        self.watching = Watching(running)
        self.members = MemberChanges(running)
        self.offers = Offers(running)
        self.groups = GroupService.over(running, self.reads, self.requests)
