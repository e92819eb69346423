"""Consumer groups in the memory of one leader: live members, their partitions, and whose commits count.

A group is coordinated by the leader of broker group ``coordinator_group(group, groups)``. Offsets are
replicated, members are not: after a fail-over the members join the new leader and claim the partitions that
they read (``owned``), so no partition moves. A partition moves in two steps: the old reader first confirms,
with the generation it was told, that it has released the partition (or its session expires); only then does
the new reader get it. So two *live* members never read one partition in the same term, and a member may
commit until it releases. A topic that was deleted and created again is a different topic: its readers
release the partitions without committing, and then get those of the new topic, in which the group has no
offset yet. Members are told the ids of their topics and repeat them in their claims, so that a new leader can
tell the topics apart, too. After the deletion of a group, claims and commits from before it are void.

Pure: takes ``now`` (seconds of any monotonic clock), starts no thread, and must never hold state that a
fail-over may not lose. The Broker actor calls it under its own lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from escrowmq.actors.client.consumer_groups import (
    GroupAssignment,
    GroupCallRefused,
    GroupJoined,
    InstanceTaken,
    MemberDescription,
    MembershipStale,
    TopicPartition,
    began_after,
    instance_of,
)
from escrowmq.replication.model import NO_ID
from escrowmq.replication.state.topics import Topic

# ------------------------------------------------------------------------------------------------------------
# Which partitions a member that joins may go on reading, of those that it claims to read.
#
# A claim counts if nobody was given the partition since the member was, not even the member itself: if it has
# not heard of that, it stands where it was before others may have read.


class Given(NamedTuple):
    """To whom a partition was given last in a term; ``topic``: the one that it belonged to then.
    ``generation``: under which, or if it was claimed, the one in the claim (-1: none)."""

    member: str
    topic: object
    generation: int


def valid_claims(
    last_given: Mapping[TopicPartition, Given],
    member: str,
    claims: Iterable[TopicPartition],
    which: Callable[[str], object],
    ids: Mapping[str, int],
    generation: int,
) -> frozenset[TopicPartition]:
    """The claims that count. ``generation``: the one under which the member reads; -1: it did not tell, then
    nobody else may have been given the partition. ``which``: the present topic of a name, and ``ids``: those
    of the topics that the member reads. A claim to a partition of an earlier topic is void: within a term
    ``last_given`` tells, and after a fail-over ``ids``."""
    valid = set()
    for tp in claims:
        topic, told = which(tp[0]), ids.get(tp[0])
        last = last_given.get(tp)
        if last is not None and (last.member != member or last.topic is not topic):
            continue
        if last is not None and -1 < generation < last.generation:
            continue
        if told is None or told == id_of(topic):
            valid.add(tp)
    return frozenset(valid)


def id_of(topic: object) -> int:
    """The id of a topic as ``which`` returns it; ``NO_ID`` if there is no topic."""
    return topic.info.topic_id if isinstance(topic, Topic) else NO_ID


# ------------------------------------------------------------------------------------------------------------
# Which member reads which partition: a balanced assignment that moves as little as possible.
#
# A pure function of the members' subscriptions and of the present holders. Balanced means: no member
# could give one of its partitions to a member that subscribes to its topic and has at least two fewer.
# Sticky means: a partition stays where it is unless balance, a leaving member or a subscription moves it.


def balance(
    subscriptions: Mapping[str, Set[str]],
    partitions: Mapping[str, int],
    holders: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """The member for each partition of any subscribed topic.

    ``subscriptions``: member -> topics; ``partitions``: topic -> number (absent: no such topic yet);
    ``holders``: the present holders. The same arguments always give the same answer.
    """
    by_topic: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            by_topic.setdefault(topic, []).append(member)
    owned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(subscriptions)}
    orphans: list[TopicPartition] = []
    for topic in sorted(by_topic):
        for partition in range(partitions.get(topic, 0)):
            holder = holders.get((topic, partition))
            if holder is not None and topic in subscriptions.get(holder, ()):
                owned[holder].append((topic, partition))
            else:
                orphans.append((topic, partition))
    for tp in orphans:
        owned[_least_loaded(by_topic[tp[0]], owned)].append(tp)
    _level(owned, by_topic)
    return {tp: member for member, mine in owned.items() for tp in mine}


def _least_loaded(candidates: Sequence[str], owned: Mapping[str, list[TopicPartition]]) -> str:
    return min(candidates, key=lambda member: len(owned[member]))


def _level(owned: dict[str, list[TopicPartition]], by_topic: Mapping[str, Sequence[str]]) -> None:
    """Moves partitions from fuller to emptier members until no move helps.

    Terminates: every move reduces the sum of the squared loads by at least two.
    """
    moved = True
    while moved:
        moved = False
        for giver in sorted(owned, key=lambda member: -len(owned[member])):
            for tp in reversed(owned[giver]):
                taker = _least_loaded(by_topic[tp[0]], owned)
                if len(owned[taker]) + 1 < len(owned[giver]):
                    owned[giver].remove(tp)
                    owned[taker].append(tp)
                    moved = True
                    break
            if moved:
                break


#: Bits of a generation below the term: 2^32 changes per term are out of reach.
GENERATION_BITS = 32
#: Shortest and longest session a member may request: with less, ordinary pauses look like deaths; with more,
#: a dead member's partitions would wait for most of an hour.
SESSION_S_MIN, SESSION_S_MAX = 0.5, 1800.0
#: A group that has offsets, or whose first member claims something, had members before this leader. For half
#: a session plus this time only claimed partitions are assigned, so that no member gets a partition that a
#: live member still reads. Half a session is the longest interval of heartbeats that ``ConsumerConfig``
#: allows; the rest is for finding the new leader. The longest session of the joined members counts.
REJOIN_GRACE_S = 2.0
#: The session assumed of members that this leader has not heard of yet: the default of ``ConsumerConfig``.
SESSION_S_USUAL = 10.0
#: Members of one group: bounds memory and the cost of one assignment.
MEMBERS_MAX = 1024
#: Groups with members on one leader.
GROUPS_MAX = 10_000

Topics = Callable[[str], "int | None"]
V = TypeVar("V")


@dataclass(slots=True)
class _MemberState:
    """``current``: last confirmed by the member; ``granted``: last told to it, under ``generation``."""

    topics: frozenset[str]
    session_timeout_s: float
    expires: float
    generation: int
    confirmed: int
    current: frozenset[TopicPartition] = frozenset()
    granted: frozenset[TopicPartition] = frozenset()
    #: Partitions that it was first given in an earlier topic of that name. Until the member has confirmed
    #: them again, its offset may be one in the earlier topic.
    anew: frozenset[TopicPartition] = frozenset()

    @property
    def held(self) -> frozenset[TopicPartition]:
        """The partitions that it may still be reading; no other member gets these."""
        return self.current | self.granted


@dataclass(slots=True)
class _Group:
    #: Whether it had members before this leader.
    older: bool
    grace_until: float = 0.0
    members: dict[str, _MemberState] = field(default_factory=dict)
    target: dict[TopicPartition, str] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    #: For each partition to whom it was given last. A claim is void if it is by another member, to a
    #: partition of an earlier topic, or from before the member was given it anew: others may have read it.
    last_given: dict[TopicPartition, Given] = field(default_factory=dict)
    #: Static members that a later member of their instance has replaced in this term, the newest last.
    replaced: dict[str, None] = field(default_factory=dict)
    #: For each instance the static member that left or expired in this term, until one of it joins.
    gone: dict[str, str] = field(default_factory=dict)
    #: The newest generation that a member was given.
    newest: int = -1


class GroupCoordinator:
    """Membership of every consumer group that this leader coordinates, for one term of leadership."""

    def __init__(
        self,
        which: Callable[[str], object] = lambda topic: None,
        last_void: Callable[[str], int] = lambda group: -1,
    ) -> None:
        """``which(topic)``: a different object after the topic was deleted and created again.
        ``last_void(group)``: the generation up to which nothing counts, since the group was deleted then."""
        self._which, self._last_void = which, last_void
        #: Groups whose deletion is on its way to the log; value: the last generation that it makes void.
        self._deleting: dict[str, int] = {}
        self._term = 0
        self._since = 0.0
        self._counter = 0
        self.groups: dict[str, _Group] = {}

    def lead(self, term: int, since: float) -> bool:
        """Starts a term of leadership, which began at ``since``, with an empty memory; repeating has no
        effect. False: a past term."""
        if term > self._term:
            self._term, self._since, self._counter = term, since, 0
            self.groups.clear()
            self._deleting.clear()
        return term == self._term

    def join(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        session_timeout_s: float,
        now: float,
        *,
        partitions: Topics,
        had_offsets: bool,
        owned: Sequence[tuple[str, int]] = (),
        ids: Mapping[str, int] | None = None,
        generation: int = -1,
    ) -> GroupJoined | GroupCallRefused | InstanceTaken:
        """Joins, or joins again. A static member (client/consumer_groups.py) replaces an earlier one of its
        instance whose session has not expired: it gets that member's partitions, and no other moves.

        ``owned``: the partitions that the member still reads, from before a fail-over or an expiry. ``ids``:
        the ids of their topics, and ``generation``: the one under which it reads them, if it was told.
        ``had_offsets``: whether the replicated state knows the group.
        """
        if self.is_void(group, generation):
            owned = ()
        if not (SESSION_S_MIN <= session_timeout_s <= SESSION_S_MAX):
            return GroupCallRefused(
                f"session_timeout_s must be in [{SESSION_S_MIN}, {SESSION_S_MAX}], not {session_timeout_s}"
            )
        state = self.groups.get(group)
        if state is None:
            if len(self.groups) >= GROUPS_MAX and not self._forget_empty():
                return GroupCallRefused(
                    f"{GROUPS_MAX} consumer groups have members on this leader; close some"
                )
            state = self.groups[group] = _Group(had_offsets or bool(owned))
        if state.older:
            grace_until = self._since + session_timeout_s / 2 + REJOIN_GRACE_S
            state.grace_until = max(state.grace_until, grace_until)
        self._expire(state, now)
        if not self._may_stand_for_its_instance(state, member, bool(owned)):
            return _taken(group, member)
        known = state.members.get(member)
        if known is None and len(state.members) >= MEMBERS_MAX:
            return GroupCallRefused(f"group {group!r} has {MEMBERS_MAX} members; close some")
        claimed = map(_pair, owned)
        claims = valid_claims(state.last_given, member, claimed, self._which, ids or {}, generation)
        if known is None:
            known = _MemberState(frozenset(topics), session_timeout_s, 0.0, 0, 0, claims, claims)
            state.members[member] = known
            self._follow_one_that_is_gone(state, member)
            for tp in claims:
                state.last_given.setdefault(tp, Given(member, self._which(tp[0]), generation))
        elif renewed := self._renewed(state, known) | known.anew:
            # Whatever it claims, its offsets there may be in an earlier topic: give them again under a later
            # generation.
            claims -= renewed
            known.current, known.granted = known.current - renewed, known.granted - renewed
            known.anew = renewed
        known.current &= claims  # it reads nothing else (any more)
        known.topics, known.session_timeout_s = frozenset(topics), session_timeout_s
        known.expires = now + session_timeout_s
        self._assign(state, partitions)
        base = known.generation = known.confirmed = self._next_generation(state)
        self._reconcile(state, member, known, now)
        if known.generation == base and known.current != known.granted:
            # It has yet to release some or to take some over, and heartbeats before that confirm ``base``.
            known.generation = self._next_generation(state)
        self._note_given(state, member, known, self._offered(known))
        assignment = self._assignment(state, member, known)
        return GroupJoined(assignment, known.granted & claims, base, known.held & claims)

    def begin(self, group: str) -> None:
        """Notes that a group unknown to the replicated state gets its first offsets in this term, before any
        member joins. They do not make it an older group, whose members would have to claim partitions."""
        if group not in self.groups and (len(self.groups) < GROUPS_MAX or self._forget_empty()):
            self.groups[group] = _Group(older=False)

    def heartbeat(
        self, group: str, member: str, generation: int, now: float, *, partitions: Topics
    ) -> GroupAssignment | MembershipStale | InstanceTaken:
        """Stays a member, and confirms the assignment of ``generation``."""
        state = self.groups.get(group)
        if state is not None and member in state.replaced:
            return _taken(group, member)
        known = None if state is None else state.members.get(member)
        if state is None or known is None:
            return MembershipStale(f"{member} is not a member of {group!r} (any more): join again")
        if generation not in (known.generation, known.confirmed):
            return MembershipStale(f"generation {generation} of {member} is not current: join again")
        known.expires = now + known.session_timeout_s
        self._expire(state, now)
        if any((partitions(topic) or 0) != n for topic, n in state.partitions.items()):
            self._assign(state, partitions)
        if generation == known.generation:
            known.confirmed, known.current = generation, known.granted
            known.anew -= known.granted
        self._reconcile(state, member, known, now)
        return self._assignment(state, member, known)

    def leave(self, group: str, member: str) -> None:
        """Returns all its partitions at once. Leaving twice is harmless."""
        state = self.groups.get(group)
        if state is not None and state.members.pop(member, None) is not None:
            self._note_gone(state, member)
            self._reassign(state)

    def check_commit(
        self, group: str, member: str, generation: int, partitions: Iterable[TopicPartition], now: float
    ) -> str | None:
        """None if this member may commit these partitions, else why not (StaleMember).

        Member ``""`` is a tool or a consumer without membership: allowed while the group is empty.
        """
        state = self.groups.get(group)
        if state is not None:
            self._expire(state, now)
        if member == "":
            if state is not None and state.members:
                return f"group {group!r} has live members; close them first"
            return None
        known = None if state is None else state.members.get(member)
        if known is None or generation not in (known.generation, known.confirmed):
            return f"{member} is not in this generation of {group!r}; its partitions may have a new reader"
        wanted = set(partitions)
        lost = sorted(wanted - known.held)
        if lost:
            return f"{member} does not hold {lost[:3]} of {group!r} (any more)"
        renewed = self._renewed(state, known) if state is not None else frozenset()
        if generation != known.generation:
            renewed |= known.anew
        if renewed := renewed & wanted:
            return f"the topic of {sorted(renewed)[:3]} was deleted and created again"
        if generation != known.generation and (offered := wanted & self._offered(known)):
            return f"{member} has lost {sorted(offered)[:3]} of {group!r}, and was given them again since"
        return None

    @staticmethod
    def _offered(member: _MemberState) -> frozenset[TopicPartition]:
        """Partitions that the member was given, and has not taken over. If it read them once, its offsets are
        from before it lost them: others may have read on, or the group was deleted."""
        return member.granted - member.current

    # -------------------------------------------------------------- deletion

    def members(self, group: str, now: float) -> tuple[str, ...]:
        """The names of the live members."""
        state = self.groups.get(group)
        if state is None:
            return ()
        self._expire(state, now)
        return tuple(sorted(state.members))

    def awaits_members(self, group: str, now: float) -> bool:
        """Whether members of an earlier leader may be about to join this one, if the group has offsets: an
        empty list of members means little as long as they may. Term 1 has no earlier leader."""
        state = self.groups.get(group)
        if state is not None:
            return state.older and now < state.grace_until
        return self._term > 1 and now < self._since + SESSION_S_USUAL / 2 + REJOIN_GRACE_S

    def newest_of(self, group: str) -> int:
        """The newest generation that a member of the group was given in this term; -1: none."""
        state = self.groups.get(group)
        return -1 if state is None else state.newest

    def delete(self, group: str, generation: int) -> None:
        """A deletion is queued: memberships up to ``generation`` are void."""
        self._deleting[group] = generation
        self._counter += 1  # answers from now on state a newer generation

    def is_being_deleted(self, group: str) -> bool:
        """Whether a deletion is on its way to the log."""
        deleting = self._deleting.get(group)
        if deleting is not None and self._last_void(group) >= deleting:
            del self._deleting[group]
            deleting = None
        return deleting is not None

    def deletion_ended(self, group: str) -> None:
        """The deletion was applied, or certainly will not be."""
        self._deleting.pop(group, None)

    def is_void(self, group: str, generation: int) -> bool:
        """Whether the group was deleted after that generation."""
        last = max(self._last_void(group), self._deleting.get(group, -1))
        return last >= 0 and generation <= last

    # -------------------------------------------------------------- live members

    def expire(self, now: float) -> None:
        """Drops members whose session has expired, in every group. Call it every second or so."""
        for state in self.groups.values():
            self._expire(state, now)

    def names(self) -> list[str]:
        """Groups with members."""
        return sorted(name for name, state in self.groups.items() if state.members)

    def describe(self, group: str, now: float) -> tuple[MemberDescription, ...]:
        """The members of a group, ordered by name."""
        state = self.groups.get(group)
        members: Mapping[str, _MemberState] = {} if state is None else state.members
        return tuple(
            MemberDescription(
                name,
                member.generation,
                tuple(sorted(member.topics)),
                tuple(sorted(member.granted)),
                round(member.expires - now, 3),
            )
            for name, member in sorted(members.items())
        )

    def _may_stand_for_its_instance(self, state: _Group, member: str, claims: bool) -> bool:
        """Whether a static member may join; if so, it has replaced an earlier one that lives. Of two members
        of an instance, the one that joins first in this term is the earlier. After a fail-over both may come
        back with claims, and then their clocks decide."""
        instance = instance_of(member)
        if instance is None:
            return True
        if member in state.replaced:
            return False
        other = next((n for n in state.members if n != member and instance_of(n) == instance), None)
        seen = other or state.gone.get(instance, member)
        if claims and seen != member and began_after(seen, member):
            _note(state.replaced, member, None)
            return False
        if other is not None:
            self._succeed(state, other, member)
        return True

    @staticmethod
    def _note_gone(state: _Group, member: str) -> None:
        """Otherwise one that comes back would be taken for the successor of its own successor."""
        instance = instance_of(member)
        if instance is not None:
            _note(state.gone, instance, member)

    @staticmethod
    def _follow_one_that_is_gone(state: _Group, member: str) -> None:
        earlier = state.gone.pop(instance_of(member) or "", member)
        if earlier != member:
            _note(state.replaced, earlier, None)

    def _succeed(self, state: _Group, earlier: str, member: str) -> None:
        """``member`` replaces ``earlier`` and gets its partitions. Partitions that ``earlier`` still had to
        release are free, because its commits no longer count."""
        gone = state.members.pop(earlier)
        _note(state.replaced, earlier, None)
        given = gone.granted - self._renewed(state, gone)
        state.members[member] = _MemberState(
            gone.topics, gone.session_timeout_s, gone.expires, 0, 0, given, given
        )
        newest = self.newest_generation
        state.last_given.update((tp, Given(member, self._which(tp[0]), newest)) for tp in given)
        state.target = {tp: member if who == earlier else who for tp, who in state.target.items()}

    @property
    def newest_generation(self) -> int:
        """The generation that was given last, in any group."""
        return self._term << GENERATION_BITS | self._counter

    def _next_generation(self, state: _Group) -> int:
        self._counter += 1
        state.newest = self.newest_generation
        return state.newest

    def _expire(self, state: _Group, now: float) -> None:
        dead = [name for name, member in state.members.items() if member.expires <= now]
        for name in dead:
            del state.members[name]
            self._note_gone(state, name)
        if dead:
            self._reassign(state)

    def _assign(self, state: _Group, partitions: Topics) -> None:
        """Computes a new target from the present topics."""
        wanted = {topic for member in state.members.values() for topic in member.topics}
        state.partitions = {topic: partitions(topic) or 0 for topic in wanted}
        self._forget_topics_that_are_gone(state, partitions)
        self._reassign(state)

    @staticmethod
    def _forget_topics_that_are_gone(state: _Group, partitions: Topics) -> None:
        """Otherwise a group whose topics come and go would keep all of them, with their indexes. A claim to a
        later topic of the name is judged by the ids that members tell."""
        gone = {topic for topic in {topic for topic, _ in state.last_given} if partitions(topic) is None}
        if gone:
            held = frozenset[TopicPartition]().union(*(member.held for member in state.members.values()))
            state.last_given = {
                tp: given for tp, given in state.last_given.items() if tp[0] not in gone or tp in held
            }

    def _reassign(self, state: _Group) -> None:
        # Partitions that a member holds take precedence over those that were only promised to it.
        holders = {tp: name for tp, name in state.target.items() if name in state.members}
        holders.update((tp, name) for name, member in state.members.items() for tp in member.held)
        subscriptions = {name: member.topics for name, member in state.members.items()}
        state.target = balance(subscriptions, state.partitions, holders)

    def _reconcile(self, state: _Group, name: str, member: _MemberState, now: float) -> None:
        """Computes the member's next assignment: first what it must release, then what has become free."""
        if member.generation != member.confirmed:
            return  # one unconfirmed change at a time: a member can be in no more than two generations
        mine = frozenset(tp for tp, owner in state.target.items() if owner == name)
        mine -= self._renewed(state, member)
        if member.granted - mine:
            granted = member.granted & mine
        elif now < state.grace_until:
            return  # others may still claim what they read
        else:
            taken = {tp for other, m in state.members.items() if other != name for tp in m.held}
            granted = mine - taken
        if granted != member.granted:
            member.generation = self._next_generation(state)
            self._note_given(state, name, member, granted - member.granted)
            member.granted = granted

    def _note_given(
        self, state: _Group, name: str, member: _MemberState, given: frozenset[TopicPartition]
    ) -> None:
        anew = set()
        for tp in given:
            now = Given(name, self._which(tp[0]), member.generation)
            if state.last_given.get(tp, now).topic is not now.topic:
                anew.add(tp)
            state.last_given[tp] = now
        member.anew |= anew

    def _renewed(self, state: _Group, member: _MemberState) -> frozenset[TopicPartition]:
        """Partitions that the member holds, and whose topic was created again since."""
        which = {topic: self._which(topic) for topic in {tp[0] for tp in member.held}}
        return frozenset(tp for tp in member.held if state.last_given[tp].topic is not which[tp[0]])

    def _assignment(self, state: _Group, name: str, member: _MemberState) -> GroupAssignment:
        pending = any(owner == name and tp not in member.granted for tp, owner in state.target.items())
        given = state.last_given
        ids = {tp[0]: id_of(given[tp].topic) for tp in member.granted}
        return GroupAssignment(member.generation, member.granted, pending, ids)

    def _forget_empty(self) -> bool:
        for name in [name for name, state in self.groups.items() if not state.members]:
            del self.groups[name]
        return len(self.groups) < GROUPS_MAX


def _note(notes: dict[str, V], name: str, value: V) -> None:
    """Bounded: the oldest note is dropped."""
    notes[name] = value
    if len(notes) > MEMBERS_MAX:
        del notes[next(iter(notes))]


def _taken(group: str, member: str) -> InstanceTaken:
    return InstanceTaken(f"a later member of {instance_of(member)!r} has replaced {member} in {group!r}")


def _pair(pair: Sequence[Any]) -> TopicPartition:
    """The network delivers lists where tuples were sent."""
    return pair[0], pair[1]
