"""One entry while the leader composes it: frames, and in parallel the decoded operations for ``apply``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from escrowmq.replication.format import ops as build
from escrowmq.replication.format.codec import ENVELOPE, Op, OpType, decode_ops, encode_command
from escrowmq.replication.replica.finishing import Finishing
from escrowmq.replication.replica.releases import Releases, Timing
from escrowmq.replication.replica.submission import Submission, Unit
from escrowmq.replication.state.topics import Topic

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
        frame = build.decided_commit(app, tx_ids, by, len(references))
        self._write(frame, Op(OpType.COMMIT, (app, tx_ids, by, len(references)), len(frame), 0))
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
