"""Consumer-group membership as one leader keeps it: the whole life of a group under a clock moved by the
test."""

import random

import pytest

from escrowmq.actors.broker.coordinator import (
    GENERATION_BITS,
    MEMBERS_MAX,
    REJOIN_GRACE_S,
    SESSION_S_USUAL,
    GroupCoordinator,
)
from escrowmq.actors.client.consumer_groups import (
    GroupCallRefused,
    GroupJoined,
    MembershipStale,
    coordinator_group,
)
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.replication.model import TopicInfo
from escrowmq.replication.state.topics import Topic

TOPICS = {"orders": 4, "items": 2}


class Group:
    """One group's calls, with the clock and the topics filled in."""

    def __init__(self, term=1, had_offsets=False):
        self.now, self.had_offsets, self.topics = 100.0, had_offsets, dict(TOPICS)
        self.created = dict.fromkeys(TOPICS, 1)
        self.coordinator = GroupCoordinator(self.created.get)
        self.coordinator.lead(term, self.now)

    def join(self, member, topics=("orders",), session_s=6.0, owned=(), generation=-1):
        return self.coordinator.join(
            "g", member, list(topics), session_s, self.now,
            partitions=self.topics.get, had_offsets=self.had_offsets, owned=owned, generation=generation,
        )  # fmt: skip

    def beat(self, member, generation):
        return self.coordinator.heartbeat("g", member, generation, self.now, partitions=self.topics.get)

    def may_commit(self, member, generation, *partitions):
        wanted = [("orders", p) for p in partitions]
        return self.coordinator.check_commit("g", member, generation, wanted, self.now) is None


def orders(*partitions):
    return {("orders", p) for p in partitions}


def test_the_first_member_gets_everything_at_once():
    group = Group()
    joined = group.join("a")
    assert isinstance(joined, GroupJoined)
    assert joined.assignment.partitions == orders(0, 1, 2, 3)
    assert not joined.assignment.pending


def test_a_partition_is_given_on_only_after_its_reader_let_go():
    group = Group()
    first = group.join("a").assignment.generation
    waiting = group.join("b").assignment
    assert not waiting.partitions and waiting.pending

    told = group.beat("a", first)
    assert told.generation > first
    assert told.partitions == orders(0, 1)
    assert not group.beat("b", waiting.generation).partitions, "a was told, and has not confirmed yet"
    assert group.may_commit("a", first, 0, 1, 2, 3), "until it confirms it may commit what it read"

    group.beat("a", told.generation)
    assert not group.may_commit("a", told.generation, 2)
    given = group.beat("b", waiting.generation)
    assert given.partitions == orders(2, 3) and not given.pending
    assert group.may_commit("b", given.generation, 2, 3)


def test_a_dead_members_partitions_move_on_and_its_commits_are_refused():
    group = Group()
    generation_a = group.join("a", session_s=6.0).assignment.generation
    generation_b = group.join("b", session_s=60.0).assignment.generation
    group.now += 5.9
    assert not group.beat("b", generation_b).partitions
    group.now += 0.2
    given = group.beat("b", generation_b)
    assert given.partitions == orders(0, 1, 2, 3)
    assert not group.may_commit("a", generation_a, 0)
    assert isinstance(group.beat("a", generation_a), MembershipStale)
    assert group.may_commit("b", given.generation, 0)


def test_leaving_frees_partitions_at_once_and_twice_is_fine():
    group = Group()
    group.join("a")
    generation = group.join("b").assignment.generation
    group.coordinator.leave("g", "a")
    group.coordinator.leave("g", "a")
    assert group.beat("b", generation).partitions == orders(0, 1, 2, 3)


def test_a_second_join_confirms_no_release():
    """A heartbeat in the background repeats the join's generation before the application has polled."""
    group = Group()
    first = group.join("a").assignment.generation
    waiting = group.join("b").assignment.generation
    group.beat("a", first)  # is told to let go of 2 and 3
    for _ in range(2):  # the answer of one may be lost
        joined = group.join("a", owned=orders(0, 1, 2, 3))
        assert joined.assignment.partitions == orders(0, 1)
        told = group.beat("a", joined.base)
        assert not group.beat("b", waiting).partitions, "a still reads them"
        assert group.may_commit("a", joined.base, 2, 3)
    group.beat("a", told.generation)
    assert group.beat("b", waiting).partitions == orders(2, 3)


def test_a_lost_answer_is_given_again():
    group = Group()
    first = group.join("a").assignment.generation
    group.join("b")
    lost = group.beat("a", first)
    assert group.beat("a", first) == lost


def test_generations_rise_over_a_fail_over():
    group = Group(term=7)
    before = group.join("a").assignment.generation
    assert before >> GENERATION_BITS == 7
    assert group.coordinator.lead(8, group.now)
    assert not group.coordinator.lead(7, group.now), "a past term cannot come back"
    assert group.join("a").assignment.generation > before


def test_after_a_fail_over_members_keep_what_they_claim():
    group = Group(term=2, had_offsets=True)
    b = group.join("b", owned=[("orders", 2), ("orders", 3)])
    assert b.assignment.partitions == b.kept == orders(2, 3)
    assert b.assignment.pending
    a = group.join("a", owned=[("orders", 0), ("orders", 1)])
    assert a.assignment.partitions == a.kept == orders(0, 1)
    assert group.beat("b", b.assignment.generation).partitions == orders(2, 3)


def test_after_a_fail_over_the_unclaimed_wait_for_the_grace():
    group = Group(term=2, had_offsets=True)
    assignment = group.join("a", owned=[("orders", 0)]).assignment
    assert assignment.partitions == orders(0) and assignment.pending
    group.now += 6.0 / 2 + REJOIN_GRACE_S
    assert group.beat("a", assignment.generation).partitions == orders(0, 1, 2, 3)


@pytest.mark.parametrize("session_s", [4.0, 6.0, 10.0, 60.0])
def test_after_a_fail_over_a_member_with_the_longest_heartbeat_keeps_its_partitions(session_s):
    """Its next heartbeat may come half a session after the last one, and be repeated to find the new leader;
    formerly the grace period was two seconds, whatever the session."""
    assert kept_by_the_late_one(session_s) == orders(2, 3)


def kept_by_the_late_one(session_s):
    """What a member keeps that reports half a session and 1.5 s after the new leader began."""
    group = Group(term=2, had_offsets=True)
    early = group.join("early", owned=[("orders", 0), ("orders", 1)], session_s=session_s).assignment
    while group.now < 100.0 + session_s / 2 + 1.5:
        group.now += 0.1
        early = group.beat("early", early.generation)
    return group.join("late", owned=[("orders", 2), ("orders", 3)], session_s=session_s).kept


def test_a_member_with_a_longer_session_lengthens_the_grace():
    group = Group(term=2, had_offsets=True)
    group.join("first", owned=[("orders", 0)], session_s=1.0)
    group.join("second", owned=[("orders", 1)], session_s=20.0)
    group.now += 11.0
    second = group.join("second", owned=[("orders", 1)], session_s=20.0)
    assert second.assignment.partitions == orders(1), "0 is first's, and 2 and 3 may still be claimed"
    assert group.join("third", owned=[("orders", 2), ("orders", 3)], session_s=20.0).kept == orders(2, 3)


def test_a_group_that_has_committed_nothing_is_given_its_grace_by_the_first_claim():
    group = Group(term=2, had_offsets=False)
    first = group.join("first", owned=[("orders", 0), ("orders", 1)]).assignment
    assert first.partitions == orders(0, 1)
    assert group.join("second", owned=[("orders", 2), ("orders", 3)]).kept == orders(2, 3)


def test_a_new_group_waits_for_nobody():
    group = Group(term=2)
    assert group.join("first").assignment.partitions == orders(0, 1, 2, 3)


def test_a_claim_on_what_somebody_else_was_given_is_void():
    group = Group()
    group.join("a", session_s=1.0)
    group.now += 2.0
    group.join("b")
    group.coordinator.leave("g", "b")
    joined = group.join("a", owned=[("orders", p) for p in range(4)])
    assert joined.assignment.partitions == orders(0, 1, 2, 3)
    assert not joined.kept, "b may have read and committed since: positions must come from the log again"


def read_by_another(group):
    """The generation of a, whose session ended, and the answer to its join after b has read and left."""
    generation = group.join("a").assignment.generation
    group.now += 7
    group.join("b")
    group.coordinator.leave("g", "b")
    return generation, group.join("a", owned=orders(0, 1), generation=generation)


def test_a_claim_does_not_count_because_the_answer_to_the_first_was_lost():
    """The second join repeats the claims: a has not heard that it was given the partitions anew."""
    group = Group()
    generation, lost = read_by_another(group)
    assert not lost.kept and lost.assignment.partitions == orders(0, 1, 2, 3)
    for _ in range(2):
        joined = group.join("a", owned=orders(0, 1), generation=generation)
        assert not joined.kept and not joined.held, "b may have read and committed there"
        assert joined.assignment.partitions == orders(0, 1, 2, 3)
    again = group.join("a", owned=orders(0, 1), generation=joined.assignment.generation)
    assert again.kept == orders(0, 1), "it has taken the assignment over, and looked its offsets up"


@pytest.mark.parametrize("fails_over", [True, False])
def test_a_claim_that_counted_counts_again_when_the_answer_was_lost(fails_over):
    group = Group()
    generation = group.join("a").assignment.generation
    group.now += 7
    if fails_over:
        group.coordinator.lead(2, group.now)
    for _ in range(3):
        joined = group.join("a", owned=orders(0, 1, 2, 3), generation=generation)
        assert joined.kept == joined.assignment.partitions == orders(0, 1, 2, 3)
        group.now += 7  # and its session ends once more


def test_an_expired_member_that_nobody_replaced_keeps_its_partitions():
    group = Group()
    group.join("a", session_s=1.0)
    group.now += 5.0
    assert group.join("a", owned=[("orders", 1)]).kept == orders(1)


def test_new_partitions_and_deleted_topics_are_noticed():
    group = Group()
    generation = group.join("a", topics=("orders", "later")).assignment.generation
    group.topics["later"] = 1
    assignment = group.beat("a", generation)
    assert assignment.partitions == orders(0, 1, 2, 3) | {("later", 0)}
    del group.topics["orders"]
    assert group.beat("a", assignment.generation).partitions == {("later", 0)}


def test_other_topics_at_a_second_join():
    group = Group()
    group.join("a", topics=("orders",))
    assignment = group.join("a", topics=("items",)).assignment
    assert not assignment.partitions
    assert group.beat("a", assignment.generation).partitions == {("items", 0), ("items", 1)}


def test_a_tool_commits_only_for_an_empty_group():
    group = Group()
    assert group.may_commit("", 0, 0)
    group.join("a")
    assert not group.may_commit("", 0, 0)


def test_bounds_are_refused_by_name():
    group = Group()
    refused = group.join("a", session_s=0.01)
    assert isinstance(refused, GroupCallRefused)
    assert "session_timeout_s" in refused.reason
    for i in range(MEMBERS_MAX):
        group.join(f"m{i}", topics=())
    assert isinstance(group.join("one-too-many"), GroupCallRefused)


def test_groups_spread_over_broker_groups():
    assert {coordinator_group(f"g{i}", 3) for i in range(9)} == {0, 1, 2}


@pytest.mark.parametrize("seed", range(150))
def test_no_partition_has_two_readers_and_all_get_one_in_the_end(seed):
    """Random joins, heartbeats, deaths, lost answers, late confirmations."""
    rng = random.Random(seed)
    group = Group()
    #: what each live client believes: generation and the partitions it reads
    clients: dict[str, tuple[int, frozenset]] = {}

    def adopt(name, assignment):
        clients[name] = (assignment.generation, assignment.partitions)

    for step in range(120):
        group.now += rng.random() * 0.4
        action = rng.random()
        if action < 0.15:
            name = f"c{step}"
            topics = rng.choice([("orders",), ("items",), ("orders", "items")])
            adopt(name, group.join(name, topics=topics).assignment)
        elif action < 0.25 and clients:
            name = rng.choice(sorted(clients))
            del clients[name]  # dies without leaving
            if rng.random() < 0.5:
                group.coordinator.leave("g", name)
        for name in sorted(clients):
            answer = group.beat(name, clients[name][0])
            if isinstance(answer, MembershipStale):
                del clients[name]  # it waited too long
            elif rng.random() < 0.7:  # otherwise the answer is lost, or adopted later
                adopt(name, answer)
        reading = [tp for _, mine in clients.values() for tp in mine]
        assert len(reading) == len(set(reading)), f"two readers; seed {seed} step {step}"

    group.now += 7.0
    adopt("last", group.join("last", topics=("orders", "items")).assignment)
    for _ in range(10):
        group.now += 0.5
        answers = {name: group.beat(name, clients[name][0]) for name in sorted(clients)}
        clients.clear()
        for name, answer in answers.items():
            if not isinstance(answer, MembershipStale):
                adopt(name, answer)
    reading = sorted(tp for _, mine in clients.values() for tp in mine)
    assert reading == sorted((t, p) for t, n in TOPICS.items() for p in range(n)), f"seed {seed}"


def test_a_topic_that_was_created_again_is_let_go_and_given_anew():
    group = Group()
    first = group.join("a").assignment.generation
    group.beat("a", first)
    group.created["orders"] += 1
    assert not group.may_commit("a", first, 0), "its offset is one in the topic before"
    told = group.beat("a", first)
    assert not told.partitions
    assert not group.may_commit("a", told.generation, 0)
    given = group.beat("a", told.generation)
    assert given.partitions == orders(0, 1, 2, 3)
    assert not group.may_commit("a", told.generation, 0), "it has not taken them over"
    assert group.may_commit("a", given.generation, 0)


@pytest.mark.parametrize("known", [True, False], ids=["a member", "one whose session ran out"])
def test_nobody_goes_on_in_a_topic_that_was_created_again_however_often_he_joins(known):
    """The answer of the first join may be lost: what the second one claims counts just as little."""
    group = Group()
    group.beat("a", group.join("a").assignment.generation)
    group.created["orders"] += 1
    group.now += 0.0 if known else 7.0
    for _ in range(3):
        joined = group.join("a", owned=orders(0, 1, 2, 3))
        assert not joined.kept
        assert joined.assignment.partitions == orders(0, 1, 2, 3)
        assert not group.may_commit("a", joined.base, 0), "it has not taken over what it was given"
        group.beat("a", joined.base)
        assert not group.may_commit("a", joined.base, 0)
    assert group.may_commit("a", joined.assignment.generation, 0)
    group.beat("a", joined.assignment.generation)
    assert group.join("a", owned=orders(0, 1, 2, 3)).kept == orders(0, 1, 2, 3)


def test_nothing_is_left_of_topics_that_come_and_go():
    """As those of a pattern do. Once they stayed in memory, with their indexes, as long as the leader led."""
    group = Group()
    for n in range(20):
        name = f"day-{n}"
        group.topics, group.created = {name: 3}, {name: n}
        group.coordinator._which = group.created.get
        joined = group.join("a", (name,))
        group.beat("a", group.beat("a", joined.assignment.generation).generation)
    kept = {topic for topic, _ in group.coordinator.groups["g"].last_given}
    assert kept <= {"day-18", "day-19"}


def test_topics_beside_one_that_was_created_again_are_kept():
    group = Group()
    joined = group.join("a", ("orders", "items"))
    group.beat("a", joined.assignment.generation)
    group.created["items"] += 1
    again = group.join("a", ("orders", "items"), owned=orders(0, 1, 2, 3) | {("items", 0), ("items", 1)})
    assert again.kept == orders(0, 1, 2, 3)
    assert group.may_commit("a", again.base, 0, 1)


def topic_of(topic_id):
    info = TopicInfo("orders", 4, "hold", 15, 6000, -1, -1, topic_id=topic_id)
    return Topic(info, {})


def led_anew(topic_id, void=-1):
    """A leader that has heard nothing from members yet."""
    group = Group(had_offsets=True)
    group.coordinator = GroupCoordinator({"orders": topic_of(topic_id)}.get, lambda name: void)
    group.coordinator.lead(2, group.now)
    group.now += 100.0  # nobody else is waited for
    return group


def claim(group, ids, generation=1 << GENERATION_BITS | 1):
    return group.coordinator.join(
        "g", "a", ["orders"], 6.0, group.now, partitions=group.topics.get, had_offsets=True,
        owned=orders(0, 1), ids=ids, generation=generation,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ids", "kept"),
    [({"orders": 2}, True), ({"orders": 1}, False), ({"orders": 0}, False), (None, True), ({}, True)],
    ids=["this topic", "the one before", "one without an id", "nothing told", "not told of this one"],
)
def test_under_a_new_leader_a_claim_is_for_the_topic_whose_id_it_tells(ids, kept):
    joined = claim(led_anew(2), ids)
    assert bool(joined.kept) == kept
    assert joined.assignment.ids == {"orders": 2}, "and members are told which topic they are given"


@pytest.mark.parametrize(("void", "kept"), [(-1, True), (0, True), (1 << GENERATION_BITS | 1, False)])
def test_what_is_claimed_from_before_the_group_was_deleted_is_void(void, kept):
    assert bool(claim(led_anew(2, void), {"orders": 2}).kept) == kept


def test_a_client_that_tells_no_generation_claims_nothing_in_a_group_that_was_deleted():
    assert not claim(led_anew(2, 5), None, -1).kept


def test_a_new_leader_waits_for_members_before_a_group_counts_as_empty():
    assert ConsumerConfig().session_timeout_s == SESSION_S_USUAL
    unheard = Group(term=2, had_offsets=True)
    assert unheard.coordinator.awaits_members("g", unheard.now + 6.9)
    assert not unheard.coordinator.awaits_members("g", unheard.now + 7.0)
    assert not Group(term=1, had_offsets=True).coordinator.awaits_members("g", 100.0)
    unheard.join("a", session_s=20.0)
    unheard.coordinator.leave("g", "a")
    assert unheard.coordinator.awaits_members("g", unheard.now + 11.9), "its longest session is known"
    begun = Group(term=2)
    begun.join("a")
    begun.coordinator.leave("g", "a")
    assert not begun.coordinator.awaits_members("g", begun.now)


def test_a_deletion_counts_from_the_moment_it_is_queued():
    group = Group()
    first = group.join("a")
    assert group.coordinator.members("g", group.now) == ("a",)
    assert group.coordinator.newest_of("g") == first.assignment.generation
    group.coordinator.leave("g", "a")
    group.coordinator.delete("g", first.assignment.generation)
    assert group.coordinator.is_being_deleted("g")
    assert group.coordinator.is_void("g", first.base)
    assert not group.coordinator.is_void("g", group.coordinator.newest_generation + 1)
    group.coordinator.deletion_ended("g")
    assert not group.coordinator.is_being_deleted("g")
