"""A consumer's view of its group: the assignment it was offered, the one it took over, and its generation.

State only, without thread, clock or network: ``membership_thread.py`` makes the calls, and ``poll`` takes
over the results. A new assignment waits as an *offer* until ``poll``: by then the application has processed
its previous records (and could commit them), and only then does the coordinator learn that partitions were
released. An assignment that ``poll`` has not taken over is never confirmed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from escrowmq.actors.client.consumer_groups import GroupAssignment, GroupJoined, TopicPartition
from escrowmq.actors.client.member_names import instance_of
from escrowmq.replication.errors import MemberFenced


@dataclass(frozen=True, slots=True)
class Offer:
    """An assignment to take over. ``kept``: partitions whose reading continues; None: all those held now.

    ``held``: where this member may commit until it has taken the offer over; None: wherever it reads now.
    """

    generation: int
    partitions: frozenset[TopicPartition]
    kept: frozenset[TopicPartition] | None
    held: frozenset[TopicPartition] | None = None
    ids: Mapping[str, int] | None = None  # of their topics; None: not told


class Membership:
    """One member of one group. Every method runs under the consumer's lock."""

    def __init__(self, group: str, member: str) -> None:
        self.group, self.member = group, member
        self.topics: tuple[str, ...] = ()
        #: Its last subscription named no topics.
        self.reads_nothing = False
        #: What it reads beside any topics that it subscribes to: its group's retries.
        self.own_topics: tuple[str, ...] = ()
        self.joined = False
        #: Whether it left because the application stopped polling; the next poll ends this.
        self.idle = False
        #: Another member of this instance has replaced it: it never joins again.
        self.fenced: MemberFenced | None = None
        #: The generation under which heartbeats and commits are made.
        self.generation = 0
        #: The ids of the topics that it reads, as of the last assignment that was taken over. None: the
        #: coordinator runs an earlier version; calls to it contain no ids.
        self.ids: Mapping[str, int] | None = None
        self.offer: Offer | None = None
        #: The coordinator has more partitions for this member once others release them: ask again soon.
        self.pending = False
        #: Number of joins, for threads that wait for the next one.
        self.joins = 0

    def subscribe(self, topics: tuple[str, ...], held: frozenset[TopicPartition] = frozenset()) -> None:
        """It is to read these: it joins (again) with them. With none it gives up what it still has (``held``)
        as soon as ``poll`` takes that over, and stays a member until then, so that it may commit."""
        self.topics = (*topics, *self.own_topics) if topics else ()
        self.reads_nothing = not topics
        if topics:
            self.joined = False
        elif self.joined:
            self.offer = Offer(self.generation, frozenset(), frozenset(), held, self.ids)
        elif self.joins:  # nobody keeps anything for it any longer
            self.lose_all()

    @property
    def leaves(self) -> bool:
        """Whether it has given up everything, and reads nothing any longer."""
        return self.joined and self.reads_nothing and self.offer is None

    def on_join(self, answer: GroupJoined) -> None:
        """The coordinator has accepted this member (again)."""
        self.generation, self.joined = answer.base, True
        self.pending = answer.assignment.pending
        self.joins += 1
        told = answer.assignment
        self.offer = Offer(told.generation, told.partitions, answer.kept, answer.held, told.ids)

    def on_heartbeat(self, assignment: GroupAssignment) -> None:
        """The coordinator has answered a heartbeat of this member."""
        self.pending = assignment.pending and not self.reads_nothing
        if self.reads_nothing:
            return  # the coordinator does not know yet that it reads nothing any longer
        if assignment.generation == self.generation and self.offer is None:
            self.ids = assignment.ids
            return
        kept, held = (self.offer.kept, self.offer.held) if self.offer is not None else (None, None)
        self.offer = Offer(assignment.generation, assignment.partitions, kept, held, assignment.ids)

    def on_stale(self) -> None:
        """The coordinator does not know this member (any longer): join again."""
        self.joined = False
        if self.reads_nothing:
            self.lose_all()

    @property
    def static(self) -> bool:
        """Whether it is a static member, whose place is kept for a session when it leaves."""
        return instance_of(self.member) is not None

    def check_not_fenced(self) -> None:
        """Raises MemberFenced."""
        if self.fenced is not None:
            raise MemberFenced(*self.fenced.args)

    def on_fenced(self) -> None:
        """The coordinator has replaced it by a later member of its instance."""
        self.fenced = MemberFenced(self.group, instance_of(self.member) or "")
        self.lose_all()

    def take_over(self) -> Offer | None:
        """Returns the offer, once. From now on its generation is confirmed."""
        offer, self.offer = self.offer, None
        if offer is not None and self.joined:
            self.generation, self.ids = offer.generation, offer.ids
        return offer

    def claim(self) -> tuple[Any, ...]:
        """What it states about its partitions when it joins again: topic ids, and the generation."""
        return () if self.ids is None else (dict(self.ids), self.generation)

    def lose_all(self) -> None:
        """This member left the group: it holds nothing any longer."""
        self.joined = False
        self.offer = Offer(0, frozenset(), frozenset(), frozenset())

    def still_holds(self, partitions: frozenset[TopicPartition]) -> bool:
        """Whether, after a join, this member still holds all these until it takes over its new assignment, so
        that it may commit them."""
        if self.offer is None or self.offer.kept is None:
            return True
        return partitions <= (self.offer.kept if self.offer.held is None else self.offer.held)
