"""The consumer's background thread that joins the group, sends heartbeats and looks up positions.

It exists so that the application can take its time between two polls without being taken for dead, and so
that ``poll`` never waits longer than it was told to. Its calls are bounded, and a failed one is repeated;
``trouble_since`` shows for how long they have been failing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from escrowmq.actors.client.background import Background
from escrowmq.actors.client.catalog import NAMES_MAX
from escrowmq.actors.client.consumer_groups import (
    GroupAssignment,
    GroupCallRefused,
    GroupJoined,
    InstanceTaken,
    MembershipStale,
    TopicPartition,
    coordinator_group,
    instance_of,
)
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.fetcher import LAG_PATIENCE_S
from escrowmq.actors.consumer.offsets import Lookup, OffsetReader, Passing
from escrowmq.actors.consumer.positions import NO_IDS, Positions
from escrowmq.actors.consumer.subscribing import Subscribing, TopicPattern
from escrowmq.replication.errors import PENDING_RETRY_S, ConfigError, EscrowMQError, MemberFenced
from escrowmq.replication.format.ops import NONE_YET

# ------------------------------------------------------------------------------------------------------------
# A consumer's view of its group: the assignment it was offered, the one it took over, and its generation.
#
# State only, without thread, clock or network: ``membership_thread.py`` makes the calls, and ``poll`` takes
# over the results. A new assignment waits as an *offer* until ``poll``: by then the application has processed
# its previous records (and could commit them), and only then does the coordinator learn that partitions were
# released. An assignment that ``poll`` has not taken over is never confirmed.


@dataclass(frozen=True, slots=True)
class Offer:
    """An assignment to take over. ``kept``: partitions whose reading continues; None: all those held now.

    ``held``: where this member may commit until it has taken the offer over; None: wherever it reads now.
    """

    generation: int
    partitions: frozenset[TopicPartition]
    kept: frozenset[TopicPartition] | None
    held: frozenset[TopicPartition] | None = None
    ids: Mapping[str, int] = field(default_factory=dict)  # of their topics


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
        #: The ids of the topics that it reads, as of the last assignment that was taken over.
        self.ids: Mapping[str, int] = NO_IDS
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
        """Whether it is a static member, whose partitions are kept for a session when it leaves."""
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
        return dict(self.ids), self.generation

    def lose_all(self) -> None:
        """This member left the group: it holds nothing any longer."""
        self.joined = False
        self.offer = Offer(0, frozenset(), frozenset(), frozenset())

    def still_holds(self, partitions: frozenset[TopicPartition]) -> bool:
        """Whether, after a join, this member still holds all these until it takes over its new assignment, so
        that it may commit them."""
        return self.offer is None or self.offer.held is None or partitions <= self.offer.held


log = logging.getLogger(__name__)

#: Time-out of one call of this thread: longer than a fail-over, shorter than a session.
CALL_S = 4.0
#: Pause before the next heartbeat while the coordinator has more partitions for this member.
PENDING_S = 0.1
RETRY_S = 0.2
#: After look-ups that took so long, and in vain, nothing else is asked for before the next heartbeat.
HEARTBEATS_WAIT_S = 1.0
#: How often the log says that a member that does not poll leaves its group, while no broker answers it.
IDLE_WARNING_S = 600.0
#: Leaving the group only speeds things up: the end of the session has the same effect.
LEAVE_S = 2.0
#: How often to look for topics of which this member reads nothing: others may read them, or they are gone. A
#: topic that is missing twice in a row is gone; one that is deleted and created again at once is not noticed.
LOOK_FOR_TOPICS_S = LAG_PATIENCE_S


class MembershipThread:
    """Keeps one consumer's membership and positions up to date, under the consumer's condition."""

    def __init__(
        self,
        router: Router,
        offsets: OffsetReader,
        positions: Positions,
        membership: Membership | None,
        condition: threading.Condition,
        config: ConsumerConfig,
        on_positions: Callable[[], None],
        subscribing: Subscribing,
        background: Background,
    ) -> None:
        """``on_positions`` is called when partitions have become fetchable."""
        self._router, self._offsets, self._positions = router, offsets, positions
        self._membership, self._condition, self._config = membership, condition, config
        self._on_positions, self._clock = on_positions, router.clock
        self._subscribing = subscribing
        #: The subscription's pattern, whose matches are the member's topics; None: the topics were named.
        self.pattern: TopicPattern | None = None
        self._next_pattern = float("-inf")
        self._next_heartbeat = float("-inf")
        self._closing = False
        self.polled_at = self._clock()
        #: Of which last poll, and when, the log said that it was too long ago.
        self._told_idle = (float("-inf"), float("-inf"))
        self.trouble_since: float | None = None
        self.error: EscrowMQError | None = None
        self.failure: Exception | None = None
        #: Topics of the subscription that no longer exist.
        self.gone: frozenset[str] = frozenset()
        #: Called with the offsets at which partitions begin before anything of these is fetched.
        self.on_offsets: Callable[[Sequence[tuple[str, int, int]]], None] | None = None
        self._missed: frozenset[str] = frozenset()
        self._next_look = float("-inf")
        #: An open transaction holds the group's offset somewhere.
        self._waits_for_offsets = False
        self._worker = background.worker(self._step, "escrowmq-membership", blocks=True)
        self._worker.start()

    def wake(self, *, heartbeat: bool = False) -> None:
        """Tells the thread that there is work; ``heartbeat``: send one even if it is not due yet."""
        if heartbeat:
            self._next_heartbeat = float("-inf")
        self._worker.wakeup.set()

    def close(self) -> None:
        """Stops the thread and leaves the group. A static member's partitions are kept for the next of its
        instance until its session expires."""
        self._closing = True
        self._worker.wakeup.set()
        member = self._membership
        if member is not None and member.joined and not member.static:
            try:
                gid = coordinator_group(member.group, self._router.info.groups)
                left = self._router.leader_call(
                    gid, "group_leave", member.group, member.member, timeout_s=LEAVE_S
                )
                result_of(left, LEAVE_S)
            except EscrowMQError as error:
                log.info("could not leave group %s (%s); its session will expire", member.group, error)

    def join_thread(self) -> None:
        """Waits for the thread to end; call it after closing the router, which ends the thread's calls."""
        self._worker.join()

    def _step(self) -> float | None:
        if self._closing:
            return None
        try:
            wait_s = self._turn()
            self.trouble_since = None
        except EscrowMQError as error:
            wait_s = RETRY_S
            with self._condition:
                self.error = error
                if self.trouble_since is None:
                    self.trouble_since = self._clock()
                self._condition.notify_all()
        except Exception as error:
            if not self._closing:
                log.exception("the membership thread of a consumer failed")
            with self._condition:
                self.failure = error
                self._condition.notify_all()
            return None
        return self._clock() + wait_s

    def _turn(self) -> float:
        self._keep_membership(self._clock())
        began = self._clock()
        late = self._look_up()
        if late is None or self._clock() - began < HEARTBEATS_WAIT_S:
            self._follow_pattern(self._clock())
            self._look_for_topics(self._clock())
        if late is not None:
            raise type(late)(*late.args)
        if self._membership is None:
            return 1.0
        longest_s = PENDING_RETRY_S if self._waits_for_offsets else 1.0
        return max(min(self._next_heartbeat - self._clock(), longest_s), 0.001)

    # ------------------------------------------------------------ membership

    def _keep_membership(self, now: float) -> None:
        member = self._membership
        if member is None or self._closing:
            return
        with self._condition:
            joined, topics = member.joined, member.topics
            idle = member.idle or member.fenced is not None
            silent = now - self.polled_at > self._config.poll_interval_max_s
            leaves = member.leaves
        if idle or not (topics or joined):
            self._next_heartbeat = now + self._config.heartbeat_interval_s
        elif leaves:
            self._leave(member)
        elif joined and silent:
            self._leave_idle(member)
        elif not joined:
            self._join(member, topics)
        elif now >= self._next_heartbeat:
            self._heartbeat(member)

    def _join(self, member: Membership, topics: tuple[str, ...]) -> None:
        with self._condition:
            claim = member.claim()
            # Others may have read since what an earlier join, not taken over yet, told it was lost.
            owned = [tp for tp in self._positions.assigned() if member.still_holds(frozenset((tp,)))]
        session_s = self._config.session_timeout_s
        answer: GroupJoined | GroupCallRefused | InstanceTaken = self._call(
            "group_join", member.group, member.member, list(topics), session_s, owned, *claim
        )
        if isinstance(answer, GroupCallRefused):
            raise answer.error(member.group, ConfigError(answer.reason))
        with self._condition:
            if isinstance(answer, InstanceTaken):
                self._fenced(member, answer)
                return
            if member.topics == topics:  # otherwise: subscribed to other topics meanwhile; joins again
                member.on_join(answer)
            self._schedule(member)
            self._condition.notify_all()

    def _heartbeat(self, member: Membership) -> None:
        with self._condition:
            generation, joins = member.generation, member.joins
        answer: GroupAssignment | MembershipStale | InstanceTaken = self._call(
            "group_heartbeat", member.group, member.member, generation
        )
        with self._condition:
            if isinstance(answer, InstanceTaken):
                self._fenced(member, answer)
                return
            if joins == member.joins and member.joined:
                if isinstance(answer, MembershipStale):
                    member.on_stale()
                    self._next_heartbeat = float("-inf")
                    return
                if generation == member.generation:  # otherwise poll took over a newer one meanwhile
                    member.on_heartbeat(answer)
            self._schedule(member)
            self._condition.notify_all()

    def _fenced(self, member: Membership, answer: InstanceTaken) -> None:
        log.warning("%s", answer.reason)
        member.on_fenced()
        self._condition.notify_all()

    def _leave(self, member: Membership) -> None:
        self._call("group_leave", member.group, member.member)
        with self._condition:
            member.joined = False  # if it has subscribed again meanwhile, it joins again

    def _leave_idle(self, member: Membership) -> None:
        now, (told_of, told_at) = self._clock(), self._told_idle
        if told_of != self.polled_at or now - told_at >= IDLE_WARNING_S:
            self._told_idle = self.polled_at, now
            log.warning(
                "no poll for %.0f s: leaving group %s so that others read its partitions",
                now - self.polled_at,
                member.group,
            )
        self._call("group_leave", member.group, member.member)
        with self._condition:
            member.idle = True
            member.lose_all()

    def _schedule(self, member: Membership) -> None:
        confirmed = member.offer is None or member.offer.generation == member.generation
        interval = PENDING_S if member.pending and confirmed else self._config.heartbeat_interval_s
        self._next_heartbeat = self._clock() + interval

    def _call(self, method: str, group: str, *args: object) -> Any:
        gid = coordinator_group(group, self._router.info.groups)
        return result_of(self._router.leader_call(gid, method, group, *args, timeout_s=CALL_S), CALL_S)

    def _follow_pattern(self, now: float) -> None:
        member, pattern = self._membership, self.pattern
        if member is None or pattern is None or self._closing or now < self._next_pattern:
            return
        self._next_pattern = now + self._config.pattern_interval_s
        if not self._subscribing.follow(pattern, CALL_S):
            return
        with self._condition:
            if self.pattern is pattern and pattern.topics:
                member.subscribe(pattern.topics)  # keeps its partitions
                self._next_heartbeat = float("-inf")

    def _look_for_topics(self, now: float) -> None:
        member = self._membership
        if member is None or self._closing or self.pattern is not None:
            return  # a topic that a pattern no longer finds is given up without an error
        with self._condition:
            read = {topic for topic, _ in self._positions.assigned()}
            unread = [topic for topic in member.topics if topic not in read] if member.joined else []
            self._missed &= frozenset(unread)
            self.gone &= self._missed
        if not unread or now < self._next_look:
            return
        self._next_look = now + LOOK_FOR_TOPICS_S
        asked = unread[:NAMES_MAX]
        call = self._router.leader_call(0, "topics", asked, timeout_s=CALL_S)
        missing = frozenset(asked) - {info.name for info in result_of(call, CALL_S)}
        with self._condition:
            self.gone, self._missed = missing & self._missed, missing
            if self.gone:
                self._condition.notify_all()

    # ------------------------------------------------------------ positions

    def _look_up(self) -> EscrowMQError | None:
        """Looks up positions that are not known; returns why some could not be, and are to be tried again."""
        with self._condition:
            unresolved = self._positions.unresolved()
            lookups = [Lookup(s.tp, s.epoch, s.goal, s.suspect, s.topic_id) for s in unresolved]
        group = None if self._membership is None else self._membership.group
        committed: dict[TopicPartition, int] | None = None
        self._waits_for_offsets = False
        if group is not None and (topics := {look.tp[0] for look in lookups if look.goal == "committed"}):
            committed, held = self._offsets.committed_and_held(group, topics, CALL_S)
            # Whoever holds them has done the work, or will not have done it: known when that is settled.
            free = [look for look in lookups if look.goal != "committed" or look.tp not in held]
            self._waits_for_offsets, lookups = len(free) < len(lookups), free
        if not lookups:
            return None
        found = self._offsets.resolve(lookups, group, self._config.auto_offset_reset, CALL_S, committed)
        if self.on_offsets is not None:
            pairs = zip(lookups, found, strict=True)
            self.on_offsets([(*look.tp, offset) for look, offset in pairs if isinstance(offset, int)])
        late: EscrowMQError | None = None
        at_end = self._config.auto_offset_reset == "latest"  # then the end is committed as the group's offset
        with self._condition:
            for look, offset in zip(lookups, found, strict=True):
                if isinstance(offset, Passing):
                    late = late or offset
                elif isinstance(offset, EscrowMQError):
                    self._positions.refuse(look.tp, look.epoch, offset)
                else:
                    gid = self._router.placement.group_of(*look.tp)
                    group_offset = None
                    if committed is not None and look.goal == "committed":
                        group_offset = committed.get(look.tp, offset if at_end else NONE_YET)
                    self._positions.resolve(look.tp, look.epoch, offset, gid, group_offset)
            self._condition.notify_all()
        self._on_positions()
        return late
