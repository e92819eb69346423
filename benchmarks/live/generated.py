"""Writes data directories as a group would have left them, in one process, without Raft, network or clients.

Sending ten million batches takes an hour; writing the data that they leave takes two minutes. Everything is
written with the product's own log, state and checkpoints, so a replica that opens such a directory finds what
it would have written itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.cluster.supervisor.member_steps import Seat
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import decode_command, encode_command, encode_row
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.state.machine import StateMachine

#: Frames in each entry, except the entries that create topics.
FRAMES_PER_ENTRY = 100
#: Time between two entries in ms; the last one has the present time.
MS_PER_ENTRY = 1_000
VISITS = 10_000
TERM = 1

Say = Callable[[str], None]


@dataclass(frozen=True)
class Content:
    """What to write.

    ``busy``: runs in the partitions of the first topic. ``spread``: runs spread evenly over all partitions,
    in whole rounds. Each run is one message of ``row_bytes``.
    """

    topics: int
    partitions: int
    busy: int
    spread: int
    row_bytes: int = 20
    segment_bytes: int = 64 << 20
    retention_ms: int = -1

    @property
    def runs(self) -> int:
        return self.busy + self.spread


def topic_name(number: int) -> str:
    return f"stored-{number}"


def fill(log: Path, content: Content, now_ms: int, say: Say) -> None:
    """Write a log and its checkpoints into the empty folder ``log``; the last entry has time ``now_ms``."""
    writer = LogWriter(log, content.segment_bytes)
    entries = list(_entries(content))
    first_ms = now_ms - MS_PER_ENTRY * sum(count for count, _ in entries)
    writer.run(entries, first_ms, say)
    writer.end(say)


def _entries(content: Content) -> Iterator[tuple[int, Sequence[bytes]]]:
    """(count, frames) of the entries in order; equal consecutive entries are combined."""
    settings = topic_settings(content.partitions, retention_ms=content.retention_ms)
    for first in range(0, content.topics, FRAMES_PER_ENTRY):
        last = min(first + FRAMES_PER_ENTRY, content.topics)
        yield 1, [ops.create_topic(topic_name(n), settings, 0) for n in range(first, last)]
    row = encode_row(b"", os.urandom(content.row_bytes), None, None)

    def message(topic: int, partition: int) -> bytes:
        return ops.message(topic_name(topic), partition, "stored", 0, -1, [row])

    busy = [message(0, n % content.partitions) for n in range(FRAMES_PER_ENTRY)]
    yield content.busy // FRAMES_PER_ENTRY, busy
    places = [
        (topic, partition) for topic in range(content.topics) for partition in range(content.partitions)
    ]
    parts = [places[n : n + FRAMES_PER_ENTRY] for n in range(0, len(places), FRAMES_PER_ENTRY)]
    frames = [[message(*place) for place in part] for part in parts]
    for _ in range(content.spread // len(places)):
        for part in frames:
            yield 1, part


class LogWriter:
    """Writes entries into an empty folder and applies them, with checkpoints; ``state``: what they leave."""

    def __init__(self, log: Path, segment_bytes: int) -> None:
        self.disk = disk = RealDisk(log)
        self._checkpoints = Checkpoints(disk, segment_bytes=segment_bytes)
        self._journal = SegmentJournal(
            disk,
            segment_bytes=segment_bytes,
            on_roll=lambda first: self._checkpoints.want(first - 1),
        )
        self.state = StateMachine(0, 1)
        self._journal.setCurrentTerm(TERM, None)
        self._journal.add(b"\x01", 1, TERM)  # the leader's first entry
        self.state.apply(1, b"")

    def run(self, entries: Sequence[tuple[int, Sequence[bytes]]], now_ms: int, say: Say) -> None:
        """Entries (count, frames), the first of them a step of time after ``now_ms``."""
        journal, index = self._journal, self.state.applied_index
        for count, frames in entries:
            decoded = decode_command(encode_command(frames, len(frames), 0))[1]
            for _ in range(count):
                index, now_ms = index + 1, now_ms + MS_PER_ENTRY
                command = encode_command(frames, len(frames), now_ms)
                journal.add(command, index, TERM)
                results = self.state.apply_ops(index, now_ms, decoded)
                assert not results[0] or not results[0][0], results[0]
                if not index % 1_000:
                    journal.sync()
                if self._checkpoints.due(index, len(command)):
                    self._checkpoint()
                    say(f"{index} entries")

    def end(self, say: Say) -> None:
        """The last checkpoint, with whatever the state has by now."""
        self._checkpoint()
        self._journal.sync()
        self._journal.close()
        say(f"{self.state.applied_index} entries, {len(self.state.topics.slots)} partitions")

    def _checkpoint(self) -> None:
        self._journal.sync()
        self._checkpoints.begin(self.state, TERM)
        while True:
            job = self._checkpoints.step(self.state, VISITS)
            if job is not None:
                job.run()
                self._checkpoints.done(self.state, job)
            elif not self._checkpoints.busy:
                return


def install(log: Path, data_dir: Path, replicas: int, linked: str | None = None) -> None:
    """Copy that log to every replica of a stopped cluster that was founded in ``data_dir``. ``linked``: files
    with this ending never change, and all replicas share one copy of each."""

    def link_or_copy(source: str, target: str) -> None:
        if linked is not None and source.endswith(linked):
            os.link(source, target)
        else:
            shutil.copy2(source, target)

    for replica in range(replicas):
        target = data_dir / Seat(0, replica, "").directory / "log"
        shutil.rmtree(target)
        shutil.copytree(log, target, copy_function=link_or_copy)
    # Otherwise the system writes the copies half a minute later, and commits then wait for half a second.
    os.sync()
