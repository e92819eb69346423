"""What members of share groups are handed out, and how the history calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.forwarded import history
from escrowmq.replication.format.internal_topics import is_internal
from tests.history.events import identify
from tests.sim.environment.world import Violation
from tests.sim.group.replica import SimReplica

#: The topic that stays, and the one that is deleted and created again.
TOPIC, CHORES = "jobs", "chores"


#: Topic as the history knows it, partition, offset.
Address = tuple[str, int, int]


class Record(NamedTuple):
    """Where a message is. Two topics of one name have different ids."""

    topic: str
    number: int
    offset: int
    topic_id: int

    @property
    def address(self) -> Address:
        """As the history knows it."""
        return named(self.topic, self.topic_id), self.number, self.offset


class Taken(NamedTuple):
    """A message that was handed out."""

    record: Record
    id: str
    attempt: int
    time_ms: int

    @property
    def told(self) -> list[Any]:
        """As the history gets it."""
        return [*self.record.address, self.id, self.attempt, self.time_ms]


def named(topic: str, topic_id: int) -> str:
    """The topic's name in the history."""
    return f"{topic}#{topic_id}" if topic == CHORES or is_internal(topic) else topic


def check_life(taken: Sequence[Taken]) -> None:
    """A message of this name's earlier topic must not be handed out as one of the present topic. Its id says
    which topic it was sent to."""
    for each in taken:
        if each.record.topic == CHORES and not each.id.startswith(life_prefix(each.record.topic_id)):
            raise Violation(f"{each.id} is handed out at {each.record}", "namesake")


def life_prefix(topic_id: int) -> str:
    """How the ids of messages begin that are sent to this topic."""
    return f"chore{topic_id}-"


def leadership(replica: SimReplica) -> str:
    """A leader in one term, as long as its monotonic clock does not jump: leases go by no wall clock."""
    clock = f"{replica.clock_ahead_s}"
    return f"{replica.address}/{replica.incarnation}/{replica.node.term}/{clock}"


def rows_of(
    runs: Sequence[tuple[int, int, int, int]], blob: bytes | memoryview
) -> list[tuple[int, str, int, int]]:
    """Offset, id, attempt and timestamp of what was fetched."""
    found, at = list[tuple[int, str, int, int]](), 0
    for base, count, time_ms, size in runs:
        rows = decode_rows(blob[at : at + size], count)
        at += size
        for n, row in enumerate(rows):
            found.append((base + n, identify(row[1]), history(row[2]).attempt, time_ms))
    return found
