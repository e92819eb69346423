"""One entry while the leader composes it: frames, and in parallel the decoded operations for ``apply``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from escrowmq.replication.format import ops as build
from escrowmq.replication.format.codec import ENVELOPE, Op, decode_ops, encode_command
from escrowmq.replication.format.forwarded import Origin
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import NO_ID
from escrowmq.replication.replica.releases import Releases, Timing
from escrowmq.replication.state.machine import Result, StateMachine
from escrowmq.replication.state.shares import Key
from escrowmq.replication.state.topics import Topic

# ------------------------------------------------------------------------------------------------------------
# A client's request on its way through the leader's queue and the log: its operations, and their results.


@dataclass(slots=True)
class Unit:
    """One client-visible operation: ``ops`` (a PREPARE with its PRE_MESSAGEs) at ``[start, end)``."""

    ops: Sequence[Op]
    start: int
    end: int


class LeftOut(NamedTuple):
    """A decision that went into the entry only in part. ``included``: the transactions that did;
    ``refused``: the reason for each other one that is open and stays open."""

    app: str
    outcome: int
    tx_ids: Sequence[str]
    included: set[str]
    refused: dict[str, tuple[int, Any]]
    across: bool


class Submission:
    """One client request on its way through the log."""

    __slots__ = ("done", "left_out", "results", "size", "tells_time", "units", "view")

    def __init__(self, request: bytes, ops: Sequence[Op], done: Callable[[tuple[Any, ...]], None]) -> None:
        self.view = memoryview(request)
        self.size = len(request)
        self.done = done
        self.units: list[Unit] = []
        #: Whether the answer tells the group's time: that to a PREPARE does.
        self.tells_time = False
        at, start = 0, 0
        while at < len(ops):
            count = 1
            if ops[at].type == OpType.PREPARE:
                count += ops[at].meta.attached
                self.tells_time = True
            last = ops[at + count - 1]
            end = last.body_pos + last.body_size
            self.units.append(Unit(ops[at : at + count], start, end))
            at, start = at + count, end
        self.results: list[Result | None] = [None] * len(self.units)
        self.left_out: dict[int, LeftOut] = {}  # by unit


class AboutTopics(Submission):
    """A request about ``topics`` as they were when it was checked, and about no later topics of these names:
    a request of the leader itself, or a consumer group's offset, which belongs to the topic that was read."""

    __slots__ = ("topics",)

    def __init__(
        self,
        request: bytes,
        ops: Sequence[Op],
        topics: Mapping[str, Topic | None],
        done: Callable[[tuple[Any, ...]], None] = lambda status: None,
    ) -> None:
        super().__init__(request, ops, done)
        self.topics = topics


# ------------------------------------------------------------------------------------------------------------
# What one entry does for share groups, while it is under way.


@dataclass(slots=True)
class Finishing:
    """What an entry makes final, for share groups, and which of them it deletes. ``answers`` replace the
    results OK of its SHARE_ACKs."""

    ranges: list[tuple[Key, Sequence[int]]] = field(default_factory=list)
    answers: list[tuple[Submission, int, Result]] = field(default_factory=list)
    held: list[tuple[Key, Sequence[int]]] = field(default_factory=list)  # by transactions that it opens
    deleted: list[str] = field(default_factory=list)  # groups
    dead: list[tuple[int, Origin]] = field(default_factory=list)  # slots of their topics
    copies: list[tuple[str, int]] = field(default_factory=list)  # a counter's name, and by how much it rises


#: Maximum bytes of bodies copied into one entry. Copying only serves locality and early retention, so bodies
#: beyond this are referred to across segments instead; an entry stays far below what Raft accepts. It limits
#: the whole entry, not each COMMIT in it: a request of 468 bytes with nine COMMITs made an entry of 35 MiB,
#: which is refused.
COPY_BYTES_MAX = 4 << 20


@dataclass(slots=True, eq=False)
class ComposedEntry:
    """A composed entry and its answers: ``slots`` has (submission, unit) per result, in order."""

    command: bytes
    now_ms: int
    ops: list[Op]
    slots: list[tuple[Submission, int]]
    submissions: list[Submission]
    deciding: list[tuple[str, Sequence[str]]]
    opening: list[tuple[tuple[str, str], int]]
    growing: list[tuple[str, Sequence[str]]]  # transactions that get a further part
    deleting: list[int | Topic]  # topics, and slots of their partitions
    creating: list[tuple[str, int]]  # topics: name and id
    timing: Timing | None  # what it does to delayed messages
    finishing: Finishing | None  # what it does for share groups


class EntryWriter:
    """Collects frames and, in parallel, the decoded operations that ``apply`` will be given."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms, self.size = now_ms, ENVELOPE.size
        self.copy_budget = COPY_BYTES_MAX
        self.frames: list[bytes] = []
        self.ops: list[Op] = []
        self.slots: list[tuple[Submission, int]] = []
        self.submissions: list[Submission] = []
        self.deciding: list[tuple[str, Sequence[str]]] = []
        self.opening: list[tuple[tuple[str, str], int]] = []
        self.growing: list[tuple[str, Sequence[str]]] = []
        self.deleting: list[int | Topic] = []
        self.creating: list[tuple[str, int]] = []
        self.timing: Timing | None = None
        self.finishing: Finishing | None = None
        self.forwarded = False  # whether it has copies of messages that have failed

    def timed(self) -> Timing:
        """What this entry does to delayed messages."""
        if self.timing is None:
            self.timing = Timing()
        return self.timing

    def schedule(self, releases: Releases, times: Iterable[int]) -> None:
        """The entry brings messages with these times."""
        releases.coming(self.timed(), releases.earliest_of(times, self.now_ms))

    def leaders(self, frame: bytes) -> None:
        """An operation of the leader's own, which has no result."""
        self._decoded(frame)

    def note_creation(self, created: tuple[str, int], deleted: Sequence[int | Topic]) -> None:
        self.creating.append(created)
        self.deleting += deleted

    def verbatim(self, submission: Submission, number: int, unit: Unit) -> None:
        shift = self.size - unit.start
        self.ops.extend([Op(o.type, o.meta, o.body_pos + shift, o.body_size) for o in unit.ops])
        self.frames.append(submission.view[unit.start : unit.end])  # type: ignore[arg-type]
        self.size += unit.end - unit.start
        self.slots.append((submission, number))

    def own(self, submission: Submission, number: int, frame: bytes) -> None:
        self._decoded(frame)
        self.slots.append((submission, number))

    def commit(
        self,
        submission: Submission,
        number: int,
        references: Sequence[bytes],
        app: str,
        tx_ids: Sequence[str],
        by: str,
    ) -> None:
        """A COMMIT, after its references. It is not decoded again, since its ids are known: by the strings
        that the tables have, whose hashes need not be computed."""
        for frame in references:
            self._decoded(frame)
        meta = build.Commit(app, tx_ids, by, len(references), [], -1)
        frame = meta.frame()
        self._write(frame, Op(OpType.COMMIT, meta, len(frame), 0))
        self.slots.append((submission, number))

    def _decoded(self, frame: bytes) -> None:
        (op,) = decode_ops(frame)
        self._write(frame, op)

    def _write(self, frame: bytes, op: Op) -> None:
        self.ops.append(Op(op.type, op.meta, op.body_pos + self.size, op.body_size))
        self.frames.append(frame)
        self.size += len(frame)

    def finish(self) -> ComposedEntry:
        command = encode_command(self.frames, len(self.ops), self.now_ms)
        return ComposedEntry(
            command,
            self.now_ms,
            self.ops,
            self.slots,
            self.submissions,
            self.deciding,
            self.opening,
            self.growing,
            self.deleting,
            self.creating,
            self.timing,
            self.finishing,
        )


# ------------------------------------------------------------------------------------------------------------
# Topics that are created or deleted in entries that are not applied yet.
#
# Entries name topics, and a name is looked up when its entry is applied. By then it may belong to another
# topic: a deletion may be under way, and a creation after it. Messages prepared for the old topic, and
# decisions based on it, must not reach the new one, so they are left out as soon as a deletion is written. A
# deletion is written only when no creation of its name is under way.


class TopicsUnderWay:
    """The topics under way at one leader. Used in its thread. Finished operations are forgotten."""

    def __init__(self, state: StateMachine) -> None:
        self._state = state
        #: Topic, or slot of a partition -> deletions of it that may be in the log and are not applied yet.
        self.deleting: Counter[int | Topic] = Counter()
        #: Name and id of topics whose creation may be in the log and is not applied yet.
        self.creating: Counter[tuple[str, int]] = Counter()

    def forget(self) -> None:
        """Leadership is lost: the next leader applies everything in its log before it composes an entry."""
        self.deleting.clear()
        self.creating.clear()

    def waits(self, submission: Submission) -> bool:
        """Whether it may delete a topic whose creation is under way. It then waits for a few entries:
        otherwise the slots to delete would not be known, and messages committed to the topic meanwhile might
        reach the next topic of that name. Also if the creation was given up: then it waits until a majority
        has that entry, or leadership is lost. Nothing behind it would be applied earlier."""
        for unit in submission.units:
            kind, meta = unit.ops[0].type, unit.ops[0].meta
            if kind == OpType.DELETE_TOPIC:
                ids = [i for name, i in self.creating if name == meta.name]
            elif kind == OpType.CREATE_TOPIC and self._state.gid > 0:
                # A topic with a later id replaces the present one.
                ids = [i for name, i in self.creating if name == meta.name and i != meta.topic_id]
            else:
                continue
            if ids:
                return True
        return False

    def note_creation(self, meta: build.CreateTopic) -> tuple[tuple[str, int], Sequence[int | Topic]]:
        """A creation is written: notes its name and id, and the earlier topic that it replaces, if an
        interrupted deletion left one here."""
        created = meta.name, meta.topic_id
        self.creating[created] += 1
        replaces = self._state.topics.is_left_over(*created)
        return created, self.note_deletion(meta.name, NO_ID) if replaces else ()

    def note_deletion(self, name: str, topic_id: int) -> Sequence[int | Topic]:
        """A deletion is written: from here on the present topic counts as deleted, if it is the one that is
        meant. Returns the topic and its slots."""
        topic = self._state.topics.topics.get(name)
        if topic is None or not self._state.topics.is_meant(name, topic_id):
            return ()
        gone: list[int | Topic] = [topic, *(partition.slot for partition in topic.partitions.values())]
        self.deleting.update(gone)
        return gone

    def created(self, topics: Sequence[tuple[str, int]]) -> None:
        """These creations are applied, or certainly in no log."""
        self.creating -= Counter(topics)

    def deleted(self, gone: Sequence[int | Topic]) -> None:
        """These deletions are applied, or certainly in no log."""
        self.deleting -= Counter(gone)

    def is_another(self, name: str, submission: Submission) -> bool:
        """Whether the name belongs, or may belong when it is applied, to another topic than the request's."""
        topic = self._state.topics.topics.get(name)
        if isinstance(submission, AboutTopics) and submission.topics[name] is not topic:
            return True
        return topic is not None and topic in self.deleting
