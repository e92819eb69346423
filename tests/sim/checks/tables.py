"""A bound for every container in the objects of a broker: queues, tables, and the containers in them.

They are checked only now and then, because that takes a hundred times as long as the sums of bounds.py; a
table that leaks is still too large at the next check. A container without a bound is a violation, too, so a
new table cannot be forgotten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from escrowmq.actors.broker.coordinator import MEMBERS_MAX
from escrowmq.replication.format.membership import LEARNERS_MAX, VOTERS_MAX
from escrowmq.replication.format.share_ops import LETTER_RANGES_MAX
from escrowmq.replication.log.disk import DESCRIPTORS
from escrowmq.replication.log.holes import HOLES_MAX
from escrowmq.replication.raft.node import COMMAND_BYTES_MAX
from escrowmq.replication.replica.lease_dispatcher import TURNS_MAX
from escrowmq.replication.replica.share_admission import LETTERS_MAX
from escrowmq.replication.state.group_offsets import ATTEMPTS_KEPT, DELETED_GROUPS_MAX
from escrowmq.replication.state.stored_runs import KEPT_BYTES
from escrowmq.replication.state.transactions import AUDIT_KEPT, LIVES_KEPT
from tests.sim.checks.containers import sizes
from tests.sim.environment.world import Violation

if TYPE_CHECKING:
    from tests.sim.group.replica import SimReplica

WALK_EVERY = 256  # ticks
#: Transactions that one operation may settle; the table of settled ones turns over only after it.
SETTLED_AT_ONCE = 10_000
#: Bound of handlers and the like, whose number depends on the program and not on what it does.
OF_THE_PROGRAM = 100
#: Requests that wait for an entry: their bytes are bounded; the smallest have some 20.
REQUESTS = 20_000
#: Segments, snapshots and run files on disk, and positions in them, which retention removes.
FILES = 20_000
#: More than simulated clients create.
TOPICS = 1_000
#: Ids of decisions in entries that are in flight or whose result this leader does not know.
DECIDING = 20_000

#: Values in the answer to one operation, and partitions of one topic that simulated clients create.
RESULT, PARTITIONS = 20, 20
#: More broker groups, and more consumer groups with members, than there are.
GROUPS = 10
#: More share groups than simulated clients have.
SHARE_GROUPS = 20

#: Messages that simulated members have at a time, and have had since the last tidying.
LEASED = 5_000
#: Processes of share groups in one schedule: each is remembered for longer than that.
SHARE_MEMBERS = 500

Most = Callable[[Counter[str], "SimReplica", Any], int]


def _peers(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    """Nothing remains of former members, except votes of this term and the like."""
    most = VOTERS_MAX + LEARNERS_MAX if replica.members_change else 0
    return max(len(replica.node.known_peers.known) + 1, most)


def _links(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    """The simulated network accepts every host; a broker's transport only those that the node wants."""
    return replica.hosts


def _entries(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    return replica.node.config.outstanding_entries_max


def _opened(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    return int(broker.state.transactions.open_count())


def _in_blocks(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    return _opened(found, replica, broker) + _aged(found, replica, broker) + SETTLED_AT_ONCE


def _aged(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    """Open transactions, and those settled while a snapshot was being written."""
    return found["OpenTable.old"]


def _settled(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    state = broker.state
    kept: int = state.settings.settled_generation + state.settings.producers_generation
    return 2 * (kept + SETTLED_AT_ONCE)


def _producers(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    return int(broker.state.settings.producers_generation)


def _of(path: str) -> Most:
    """As many as ``path`` has: no empty entries and no leftovers."""
    return lambda found, replica, broker: found[path]


def _apps(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    """Apps with something open, decided, or settled since the turn before last."""
    held = _opened(found, replica, broker) + _decided(found, replica, broker)
    return held + _settled(found, replica, broker)


def _decided(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    """Decisions that wait for branches in other groups: at most one for each branch."""
    return int(broker.state.transactions.across.decided) * broker.state.groups


def _groups(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    return int(broker.state.settings.groups_kept)


def _positions(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    return found["StateMachine.group_offsets"] * (1 + found["TopicTable.slots"])


def _partitions(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    """Include partitions of deleted topics as long as entries or requests about them are under way."""
    gone = "AboutTopics.topics", "TopicsUnderWay.deleting", "Admission._unsure", "ComposedEntry.deleting"
    return found["TopicTable.slots"] + PARTITIONS * sum(found[name] for name in gone)


def _pairs(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    return SHARE_GROUPS * found["TopicTable.slots"]


def _timers(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    return int(broker.state.timers.counts.total)


def _due(found: Counter[str], replica: SimReplica, broker: Any) -> int:
    slack: int = broker.state.due.slack
    return 2 * _opened(found, replica, broker) + 2 * slack + 2_000


BOUNDS: dict[str, int | Most] = {
    # The leader's work: waiting requests, and entries in flight.
    "Admission.queue": REQUESTS,
    "Admission._deciding": _of("Admission._deciding[]"),
    "Admission._deciding idle": 0,
    "Admission._opening idle": 0,
    "Admission._deciding[]": DECIDING,
    "Admission._opening": _of("ComposedEntry.opening"),
    "Admission._growing": _of("Admission._growing[]"),
    "Admission._growing idle": 0,
    "Admission._growing[]": DECIDING,
    "TopicsUnderWay.creating": REQUESTS,
    "TopicsUnderWay.deleting": REQUESTS,
    "Admission._unsure": REQUESTS,
    "CommitHold.held": REQUESTS,
    "ComposedEntry.creating": REQUESTS,
    "ComposedEntry.deciding": REQUESTS,
    "ComposedEntry.deleting": REQUESTS,
    "ComposedEntry.opening": REQUESTS,
    "ComposedEntry.growing": REQUESTS,
    "ComposedEntry.ops": REQUESTS,
    "ComposedEntry.slots": REQUESTS,
    "ComposedEntry.submissions": REQUESTS,
    "Releases._cancelling": REQUESTS,
    "Releases._coming": REQUESTS,
    "Histogram.counts": OF_THE_PROGRAM,
    "Histogram.bounds": OF_THE_PROGRAM,
    "Timing.answers": REQUESTS,
    "Timing.cancelling": REQUESTS,
    "Replica._own": _entries,
    "Branches._asking": GROUPS,
    "Branches._failures": GROUPS,
    "Branches._fewer": GROUPS,
    "Branches._not_before": GROUPS,
    "Branches._pushing": GROUPS,
    "Branches.counts": OF_THE_PROGRAM,
    "AboutTopics.left_out": 0,
    "AboutTopics.results": REQUESTS,
    **{"AboutTopics.results" + "[]" * depth: RESULT for depth in range(1, 3)},
    # A request that commits a consumer group's offset may ask about transactions and cancel, too.
    **{"AboutTopics.results" + "[]" * depth: REQUESTS for depth in range(3, 5)},
    "AboutTopics.topics": REQUESTS,
    "AboutTopics.units": REQUESTS,
    "Submission.left_out": REQUESTS,
    "Submission.results": REQUESTS,
    # Answers to CANCELs that are under way; to INQUIREs, down to the groups of each transaction.
    **{"Submission.results" + "[]" * depth: REQUESTS for depth in range(1, 5)},
    **{"Timing.answers" + "[]" * depth: REQUESTS for depth in range(1, 5)},
    "Submission.units": REQUESTS,
    "Unit.ops": REQUESTS,
    # Members of consumer groups, in the memory of their coordinator.
    "GroupCoordinator._deleting": GROUPS,
    "GroupCoordinator.groups": GROUPS,
    "CommitsUnderWay.queued": _of("CommitsUnderWay.queued[]"),
    "CommitsUnderWay.queued idle": 0,
    "CommitsUnderWay.queued[]": GROUPS * PARTITIONS,
    "CommitsUnderWay.queued[] idle": 0,
    "CommitsUnderWay.unknown": GROUPS,
    "_Unknown.partitions": GROUPS * PARTITIONS,
    "_Group.gone": MEMBERS_MAX,
    "_Group.last_given": GROUPS * PARTITIONS,
    "_Group.members": MEMBERS_MAX,
    "_Group.partitions": GROUPS,
    "_Group.replaced": MEMBERS_MAX,
    "_Group.target": GROUPS * PARTITIONS,
    # The state.
    "AcrossGroups.undone": _of("AcrossGroups.undone[]"),
    "AcrossGroups.undone idle": 0,
    "AcrossGroups.undone[]": _decided,
    "AppTransactions.decided": _decided,
    # All transactions of a block are open, or were when a snapshot that is being written began.
    "Block._index_of": _in_blocks,
    "Block._refs": _in_blocks,
    "Block.digests": _in_blocks,
    "Block.query_ids": _in_blocks,
    "Block.rows": lambda found, replica, broker: PARTITIONS * _in_blocks(found, replica, broker),
    "Block.tx_ids": _in_blocks,
    "AppTransactions.open_by_topic": _apps,
    "AppTransactions.parked": _opened,
    "Counts.decided": OF_THE_PROGRAM,
    "OpenTable._changed": _aged,
    "OpenTable.gone": _aged,
    "OpenTable.old": lambda found, replica, broker: _opened(found, replica, broker) + found["OpenTable.gone"],
    "OpenTable.young": _opened,
    "PartitionIndex.sealed": FILES,
    "ProducerMemory.old": _producers,
    "ProducerMemory.young": _producers,
    "StateMachine._handlers": OF_THE_PROGRAM,
    "StateMachine._pending_refs": REQUESTS,
    "DeletedGroups.generations": DELETED_GROUPS_MAX,
    "StateMachine.group_offsets": _groups,
    "StateMachine.group_offsets[]": _positions,
    "StateMachine.group_offsets[][]": _positions,
    # Share groups.
    "Shares.groups": SHARE_GROUPS,
    "Shares.pairs": _pairs,
    "Shares._fresh": _pairs,
    "Finishing.answers": REQUESTS,
    **{"Finishing.answers" + "[]" * depth: REQUESTS for depth in range(1, 5)},
    "Finishing.copies": REQUESTS,
    "Finishing.deleted": REQUESTS,
    "Finishing.dead": REQUESTS,
    "Finishing.held": REQUESTS,
    **{"Finishing.held" + "[]" * depth: REQUESTS for depth in range(1, 3)},
    "Finishing.ranges": REQUESTS,
    **{"Finishing.ranges" + "[]" * depth: REQUESTS for depth in range(1, 3)},
    "Rows._kept": REQUESTS,
    "Rows._kept[]": REQUESTS,
    "Agenda.duties": OF_THE_PROGRAM,
    # Leases, and who waits for some.
    "Leases.windows": lambda found, replica, broker: SHARE_GROUPS * found["TopicTable.slots"],
    "Leases._due": LEASED,
    "Leases._doubtful": _of("Leases.windows"),
    "Receipts._members": SHARE_MEMBERS,
    "_Member.given": LEASED,
    "Window.held": LEASED,
    "Window.free": LEASED,
    "LeaseDispatcher.parked": REQUESTS,
    **{f"Rounds.{name}": REQUESTS for name in ("_asked", "_next")},
    "LeaseDispatcher._told_ms": GROUPS,
    "LeaseDispatcher._turns": TURNS_MAX,
    "DeadOrigins._known": GROUPS,
    "_Letters.offsets": LETTERS_MAX,
    "DeadOrigins._under_way": REQUESTS,
    "DeadOrigins._under_way idle": 0,
    "ShareAdmission._deleting": REQUESTS,
    "ShareAdmission._holding": _of("ShareAdmission._holding[]"),
    "ShareAdmission._holding idle": 0,
    "ShareAdmission._holding[]": REQUESTS,
    "ShareAdmission._holding[][]": REQUESTS,
    "ShareAdmission.under_way": _of("ShareAdmission.under_way[]"),
    "ShareAdmission.under_way idle": 0,
    "ShareAdmission.under_way[]": REQUESTS,
    "ShareAdmission.under_way[][]": REQUESTS,
    "ShareAdmission.counts": OF_THE_PROGRAM,
    "Shares._of_slot": _of("TopicTable.slots"),
    "Shares._of_slot idle": 0,
    "Shares._of_slot[]": _of("Shares.pairs"),
    "Claims._busy": GROUPS,
    "Claims.by_name": GROUPS,
    "Claims.open": GROUPS,
    "Overtaken._present": GROUPS,
    "Overtaken._present[]": _opened,
    "Overtaken._taken": _opened,
    "Overtaken.waiting": GROUPS,
    "Overtaken.waiting[]": _opened,
    "Overtaken.of": _opened,
    "DueQueue.expired": _due,
    "HeldLetters._holders": SHARE_GROUPS,
    "HeldLetters._holders[]": _of("HeldLetters.by_tx"),
    "HeldLetters._holders[][]": _of("HeldLetters._holders[]"),
    "HeldLetters.by_tx": _opened,
    "HeldLetters.by_tx[]": GROUPS,
    "HeldLetters.by_tx[][]": 2 * LETTER_RANGES_MAX,
    "HeldOffsets._offsets": _groups,
    "HeldOffsets._offsets[]": _positions,
    "HeldOffsets._offsets[][]": _positions,
    "HeldOffsets.by_tx": _opened,
    "HeldOffsets.by_tx[]": GROUPS,
    "HeldOffsets.holders": GROUPS,
    "HeldOffsets.holders[]": GROUPS,
    "HeldOffsets.holders[][]": GROUPS,
    "Snapshot.attempts": FILES,
    "Snapshot.held": FILES,
    "Snapshot.unattended": FILES,
    "Snapshot.letters": FILES,
    "TransactionTable.unattended": _opened,
    "Snapshot.claimed": FILES,
    "Snapshot.claims": FILES,
    "Snapshot.share_groups": FILES,
    "Snapshot.shares": FILES,
    "StateMachine.attempts": ATTEMPTS_KEPT,
    "Topic.partitions": _partitions,
    "TopicTable.slots": TOPICS,
    "TopicTable.topics": TOPICS,  # every group knows every topic, and has slots for some of the partitions
    "TransactionTable._fronts": _apps,
    "TransactionTable._untidy": _apps,
    "TransactionTable.apps": _apps,
    "TransactionHistory._counts": len(LIVES_KEPT),
    "TransactionHistory._rings": len(LIVES_KEPT),
    "TransactionHistory._rings[]": max(LIVES_KEPT),
    "Snapshot.lives": len(LIVES_KEPT),
    "Snapshot.lives[]": max(LIVES_KEPT),
    "TransactionTable.audit": AUDIT_KEPT,
    "TwoGenerations.old": _settled,
    "TwoGenerations.young": _settled,
    # Delayed messages: those that wait, and what a store keeps of the others until their bucket has passed.
    "Bucket.chunks": FILES,
    "Bucket.parts": FILES,
    "TimerCounts._blocks": _of("TimerCounts._blocks[]"),
    "TimerCounts._blocks idle": 0,
    "TimerCounts._blocks[]": _timers,
    "TimerCounts._bytes": _of("TimerCounts._blocks"),
    "TimerCounts._bytes idle": 0,
    "TimerCounts._frozen": _of("TimerCounts._blocks"),
    "Timers.pending": 0,  # cancelled ones: TwoGenerations
    "RepeatedKeys._old": REQUESTS,
    "RepeatedKeys._young": REQUESTS,
    "TimerStore._files": FILES,
    "TimerStore._sealing": FILES,
    "TimerStore.retired": FILES,
    "Young._buckets": OF_THE_PROGRAM,
    "Young._buckets[]": _of("Young._numbers[]"),
    "Young._numbers": OF_THE_PROGRAM,
    "Young._numbers[]": FILES,
    # Checks that will be due.
    "DueQueue.buckets": _due,
    "DueQueue.buckets[]": _due,
    "DueQueue.queues": _of("DueQueue.queues[]"),
    "DueQueue.queues idle": 0,
    "DueQueue.queues[]": _due,
    "DueQueue._again": _opened,
    "DueQueue.leases": _opened,
    "BranchQueue._homes": _of("BranchQueue._homes[]"),
    "BranchQueue._homes idle": 0,
    "BranchQueue._homes[]": _due,
    "DueNews._number": _of("DueQueue.queues"),
    "DueNews._pairs": _of("DueQueue.queues"),
    "DueNews._topics": _of("DueQueue.queues"),
    "DueNews._topics idle": 0,
    "DueNews._topics[]": _of("DueQueue.queues"),
    "DueQueue.order": lambda found, replica, broker: 2 * found["DueQueue.buckets"] + 2_000,
    "DueQueue._untidied": _due,
    # Snapshots: while one is being written, it has a copy of the state.
    "Checkpoints._runs": FILES,
    "StoredFiles._clock": DESCRIPTORS,
    "StoredFiles._known": FILES,
    "KeptBlocks._blocks": KEPT_BYTES // 1_000,
    "RunFile._blocks": FILES,
    "SealedFile._pages": FILES,
    "SealedFile._pages[]": FILES,
    "Checkpoints._named": FILES,
    "Checkpoints._named[]": FILES,
    "Checkpoints.run_files": FILES,
    "Checkpoints._unneeded": FILES,
    "RemovalJob.unread": FILES,
    "RemovalJob.names": FILES,
    "MergeJob.files": FILES,
    "RunMergeJob._alive": FILES,
    "RunMergeJob.files": FILES,
    "_Foot.crcs": FILES,
    "_Foot.first_keys": FILES,
    "_Foot.living": FILES,
    "Checkpoints.indexes": 10,
    **{
        f"Snapshot.{name}": FILES
        for name in (*("decided", "given", "groups", "open", "producers", "settled", "tables", "topics"),)
    },
    "Capture._tables": FILES,
    "RetentionRound._frames": FILES,
    **{"Snapshot.meta" + "[]" * depth: FILES for depth in range(8)},
    # The log, and what waits for the disk.
    "CommitQueue._mends": HOLES_MAX + FILES,
    "CommitQueue._removals": FILES,
    "CommitQueue._retry": FILES,
    "CommitQueue._writes": FILES,
    "CommitQueue.buffers": FILES,
    "EntryCache.entries": FILES,
    "OpenSegment.sums": FILES,
    "KnownHoles.by_index": HOLES_MAX,
    "SegmentReader._clock": 64,
    "SyncJob._mends": HOLES_MAX + FILES,
    "SyncJob.mended": HOLES_MAX + FILES,
    "SyncJob._removals": FILES,
    "SyncJob._writes": FILES,
    "SyncJob.rest": FILES,
    "SyncJob.sealed": FILES,
    "TermRuns._starts": FILES,
    "TermRuns._terms": FILES,
    "Write.buffers": FILES,
    # Consensus.
    "Core._answer": OF_THE_PROGRAM,
    "Core._idToConsumer": OF_THE_PROGRAM,
    "Core._idToMethod": OF_THE_PROGRAM,
    "Core._methodToID": OF_THE_PROGRAM,
    "Core._match": _peers,
    "Core._peer_nodes": _peers,
    "Core._SyncObj__commandsWaitingCommit": 0,
    "Core._SyncObj__commandsWaitingReply": 0,
    "Core._SyncObj__connectedNodes": _peers,
    "Core._SyncObj__consumers": OF_THE_PROGRAM,
    "Core._SyncObj__currentVersionFuncNames": OF_THE_PROGRAM,
    "Core._SyncObj__lastResponseTime": _peers,
    "Core._SyncObj__onTickCallbacks": OF_THE_PROGRAM,
    "Core._SyncObj__otherNodes": _peers,
    "Core._SyncObj__properies": OF_THE_PROGRAM,
    "Core._SyncObj__raftMatchIndex": _peers,
    "Core._SyncObj__raftNextIndex": _peers,
    "Core._SyncObj__readonlyNodes": 0,
    "Circle.may_vote": _peers,
    "Core._linked": _peers,
    "FollowerGuard.held": _peers,
    "FollowerGuard.held[]": lambda found, replica, broker: 20 * found["FollowerGuard.held"],
    "Handover._asked": _peers,
    "Handover._connected": _peers,
    "MembershipChanges._held": LEARNERS_MAX,
    "MembershipChanges._rounds": LEARNERS_MAX,
    "KnownPeers._told": _peers,
    "KnownPeers.known": _peers,
    "MemberHistory._commands": FILES,
    "MemberHistory._indexes": FILES,
    "PeerProgress._flights": COMMAND_BYTES_MAX,
    "PreVote._agreed": _peers,
    "Proposals.sizes": _entries,
    "Proposals.waiting": _entries,
    "RaftNode._connected": _peers,
    "RaftNode._handlers": OF_THE_PROGRAM,
    "RaftNode._linked": _links,
    "PeerMarks._known": _peers,
    "Rejoin._answers": _peers,
    "Rejoin._learners": _peers,
    "Rejoin._links": _peers,
    "Replicator._connected": _peers,
    "Replicator.progress": _peers,
    "SegmentJournal.damaged": HOLES_MAX,
    "VoteGuard._voters": _peers,
    "Votes._counted": _peers,
    "_VotesOut._onUtilityMessageCallbacks": OF_THE_PROGRAM,
}


def check_tables(replica: SimReplica) -> None:
    """Raise Violation for a container that has grown beyond its bound, or has none."""
    broker = getattr(replica.app, "replica", None)
    beside = getattr(replica.app, "beside", ())
    found = sizes(*(root for root in (broker, replica.node, replica.journal, *beside) if root is not None))
    new = sorted(path for path in found if path not in BOUNDS and not path.endswith(" idle"))
    if new:
        raise Violation(
            f"no bound is known for {', '.join(new)}: say one in tests/sim/checks/tables.py", "unbounded"
        )
    for path, size in found.items():
        bound = BOUNDS.get(path)
        if size and bound is not None:  # idle values are allowed in most tables
            most = bound if isinstance(bound, int) else bound(found, replica, broker)
            if size > most:
                raise Violation(f"{path} on {replica.name} holds {size}, more than {most}", "unbounded")
