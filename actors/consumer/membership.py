"""A consumer's side of its group: what it was told, what it has taken over, under which generation.

State only, without thread, clock or network; ``session.py`` makes the calls, ``poll`` takes over what
they brought. A new assignment waits as an *offer* until ``poll``: the application has then finished
what it was given before (and had its chance to commit it), and only then does the coordinator hear
that partitions were let go. Never confirms an assignment that ``poll`` has not taken over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from escrowmq.actors.client.assignment import TopicPartition

ByTopic = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Offer:
    """An assignment to be taken over. ``kept``: where reading goes on; None: wherever it is held now."""

    generation: int
    partitions: frozenset[TopicPartition]
    kept: frozenset[TopicPartition] | None


class Membership:
    """One member of one group. Every method runs under the consumer's lock."""

    def __init__(self, group: str, member: str) -> None:
        self.group, self.member = group, member
        self.topics: tuple[str, ...] = ()
        self.joined = False
        #: Left because the application stopped polling; the next poll ends it.
        self.idle = False
        #: Heartbeats and commits are made under it.
        self.generation = 0
        self.offer: Offer | None = None
        #: The coordinator has more for us once others let go: ask again soon.
        self.pending = False
        #: Counts joins, so that whoever waits for one can tell.
        self.joins = 0

    def on_join(self, answer: Sequence[Any]) -> None:
        """``("ok", generation, assignment, pending, kept, base)``."""
        _, generation, assignment, self.pending, kept, base = answer
        self.generation, self.joined = base, True
        self.joins += 1
        self.offer = Offer(generation, flat(assignment), flat(kept))

    def on_heartbeat(self, answer: Sequence[Any]) -> None:
        """``("ok", generation, assignment, pending)``."""
        _, generation, assignment, self.pending = answer
        if generation == self.generation and self.offer is None:
            return
        kept = self.offer.kept if self.offer is not None else None
        self.offer = Offer(generation, flat(assignment), kept)

    def on_stale(self) -> None:
        """The coordinator does not know this member (any more): join again."""
        self.joined = False

    def take_over(self) -> Offer | None:
        """The offer, once; from now on its generation is confirmed."""
        offer, self.offer = self.offer, None
        if offer is not None and self.joined:
            self.generation = offer.generation
        return offer

    def lose_all(self) -> None:
        """Left the group: nothing is held any more."""
        self.joined = False
        self.offer = Offer(0, frozenset(), frozenset())

    def still_holds(self, partitions: frozenset[TopicPartition]) -> bool:
        """After a join: reading of all these goes on, so their commits are still this member's."""
        return self.offer is None or self.offer.kept is None or partitions <= self.offer.kept


def flat(by_topic: ByTopic) -> frozenset[TopicPartition]:
    """``{topic: [p, ...]}`` as a set of pairs."""
    return frozenset((topic, partition) for topic, partitions in by_topic.items() for partition in partitions)
