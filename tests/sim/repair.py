"""How a simulated replica that is too far behind takes a peer's log: what the broker's repair does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.replication.install import PREFIX, staged_name, switch_files
from escrowmq.replication.journal import SegmentJournal
from escrowmq.replication.segment_format import sidecar_name

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica


def repair(replica: SimReplica, peers: list[SimReplica]) -> int:
    """Stop ``replica``, copy what a peer holds durably (log and state files), start again; 1 if it was done.

    The copied log must be at least as up to date as the replica's own, in the sense of a vote: else
    the replica could forget an entry that it helped to commit.
    """
    # Any leader will do, ready or not: where both others are too far behind, none becomes ready before.
    source = next((p for p in peers if p.up and p.node.is_leader), None)
    if source is None or source is replica:
        return 0
    segments = [s for s in source.journal.segments() if s.first <= source.journal.durable_index]
    last = source.journal.durable_index
    state_files = source.app.repair_files(last)
    if state_files is None:
        return 0
    last_term = source.journal.term_at(last) or 0
    journal = replica.journal
    if (last_term, last) < (journal.last_term, journal.last_index):
        return 0
    contents = {s.name: source.disk.read_all(s.name)[: s.size] for s in segments}
    sidecars = [sidecar_name(s.first) for s in segments if s.sealed]
    extra = [name for name in sidecars if source.disk.exists(name)] + state_files
    contents |= {name: source.disk.read_all(name) for name in extra}
    replica.crash(power=False)
    replica.disk.capacity = None
    SegmentJournal(replica.disk).close()  # a wiped disk gets its vote file
    for name, content in contents.items():
        file = replica.disk.open(staged_name(name), create=True)
        file.append([content])
        file.sync()
    # The own snapshots and run files go too: a run file of the same name covers another interval.
    ours = [name for name in replica.disk.names() if not name.startswith(PREFIX)]
    old = [name for name in ours if name.endswith((".log", ".pos", ".snap", ".runs"))]
    switch_files(replica.disk, list(contents), remove=old)
    replica.disk.kill()
    replica.start()
    return 1
