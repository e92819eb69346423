"""What operators are shown of share groups: settings, places, dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from escrowmq.replication.format.forwarded import Origin
from escrowmq.replication.format.share_settings import GroupSettings


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """A group's settings. ``kind``: "share", "stream" (it reads by offsets), or "" (not decided yet).

    A message that has failed ``max_attempts`` times, or fails longer than ``max_age_s`` after its first
    failure (None: no limit), becomes a dead letter: it is kept, or dropped (``dead_letters`` "keep", "drop").
    ``delays_s``: the pauses after the first failure, the second, ...; the last one counts for all further
    ones. ``lease_s``: how long a message belongs to a consumer that has named no other time.
    """

    kind: str
    max_attempts: int
    delays_s: tuple[float, ...]
    lease_s: float
    max_age_s: float | None
    dead_letters: str

    @classmethod
    def of(cls, found: GroupSettings) -> ShareSettings:
        """From those of the log."""
        return cls(
            found.kind,
            found.max_attempts,
            tuple(delay / 1000 for delay in found.delays_ms),
            found.lease_ms / 1000,
            None if found.max_age_ms < 0 else found.max_age_ms / 1000,
            found.dead_letters,
        )


@dataclass(frozen=True, slots=True)
class SharePartition:
    """A share group in one partition, which ends at ``end``: everything below ``start`` is final.

    ``lag``: messages that are not final; ``leased``: those of them that a consumer has; ``expired``: messages
    that retention has removed before they were handled; ``ranges``: final ranges above the start.
    """

    topic: str
    partition: int
    start: int
    end: int
    lag: int
    leased: int
    expired: int
    ranges: int


@dataclass(frozen=True, slots=True)
class ShareDescription:
    """What a group has beside members and offsets: its settings and, for a share group, its places.

    ``leased``: messages that a consumer has. ``retrying``: messages that have failed and come again,
    ``retrying_later`` of them only when their pause has ended. (In a group that retries in order, these are
    the messages for which partitions wait, and those that were redriven; their pauses are known to its
    consumers alone.) ``dead``: dead letters that were neither redriven nor dropped.
    """

    settings: ShareSettings
    partitions: tuple[SharePartition, ...] = ()
    leased: int = 0
    retrying: int = 0
    retrying_later: int = 0
    dead: int = 0

    @property
    def lag(self) -> int:
        """Messages of its topics that are not final."""
        return sum(p.lag for p in self.partitions)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message with which a group has given up.

    ``id``: its place among the group's dead letters, for ``redrive`` and ``drop_dead_letters``. ``origin``:
    the message that was sent (topic, partition, offset, timestamp); None: not told. ``attempts``: how often
    it was delivered. ``first_failed`` (None: not told) and ``died`` in ms since the epoch. ``reason``: of the
    last failure; ``by``: who reported it ("lease": nobody, its lease ran out again and again). ``headers``:
    those of the sender. ``problem``: why ``value`` is empty or not what was sent, or None.
    """

    id: str
    origin: Origin | None
    attempts: int
    first_failed: int | None
    died: int
    reason: str
    by: str
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    tx_id: str | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Redriven:
    """What ``redrive`` did. ``already``: of those that were asked for, how many had been redriven or dropped
    before. ``unreadable``: left where they are, since their values cannot be sent to another topic."""

    redriven: int
    already: int = 0
    unreadable: int = 0
