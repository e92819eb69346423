"""Proves that each of invariants.py is checked: a sound history of three replicas, then one bad step.

Random schedules with planted faults (tests/controls) reach most kinds, but not all, and not by a step that is
easy to read. The replicas (seen_group.py) have only what the checker looks at.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator

import pytest

from escrowmq.replication.format.membership import Members
from tests.sim.checks import invariants as checks
from tests.sim.environment.world import Violation
from tests.support.seen_group import SeenGroup, SeenReplica

Story = Callable[[SeenGroup], Iterator[None]]
#: (kind, story): its sound part, and after the ``yield`` the bad step.
STORIES: list[tuple[str, Story]] = []


def breaks(kind: str) -> Callable[[Story], Story]:
    def register(story: Story) -> Story:
        STORIES.append((kind, story))
        return story

    return register


# ------------------------------------------------------------------ votes and leaders
@breaks("term-fell")
def a_term_is_forgotten(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    yield
    group.b.incarnation += 1  # a restart changes nothing about what its disk has promised
    group.b.journal.ballot = (0, None)
    group.look()


@breaks("voted-twice")
def a_vote_is_forgotten_and_given_again(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    yield
    group.b.journal.ballot = (1, "c")
    group.look()


@breaks("two-leaders")
def a_second_one_leads_the_same_term(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    yield
    group.elect(group.c, 1, group.c)


@breaks("no-majority")
def one_vote_of_three_is_enough(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    yield
    group.elect(group.c, 2, group.c)


@breaks("incomplete-leader")
def one_leads_that_lacks_an_acknowledged_entry(group: SeenGroup) -> Iterator[None]:
    group.elect(group.a, 1, group.a, group.b)
    group.replicate(1, group.a, group.b)
    group.acknowledge(2, 1)
    yield
    group.elect(group.c, 2, group.c, group.b)


@breaks("early-promotion")
def a_voter_counts_whose_disk_is_empty(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    newcomer = SeenReplica("r3")
    group.checker.look(newcomer)
    group.change(group.a, Members(2, ("a", "b", "c"), ("r3",), "x", 3))
    yield
    group.change(group.a, Members(3, ("a", "b", "c", "r3"), (), "x", 3))


# ------------------------------------------------------------------ replication
@breaks("false-match")
def a_follower_cuts_what_the_leader_counts_on(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.a.node.replicator.progress["c"].match = 2
    group.look()
    yield
    group.c.journal.cut(2)
    group.look()


@breaks("false-match")
def a_follower_is_counted_for_what_the_leader_itself_lacks(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.look()
    yield
    group.a.node.replicator.progress["b"].match = group.a.journal.last_index + 1
    group.look()


@breaks("false-match")
def a_follower_is_counted_before_its_sync(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    for replica in group.replicas:
        replica.journal.append(1, durable=replica is group.a)
    group.look()
    yield
    group.a.node.replicator.progress["b"].match = 3
    group.look()


@breaks("old-term-commit")
def an_older_terms_entry_is_committed_by_counting(group: SeenGroup) -> Iterator[None]:
    group.elect(group.a, 1, group.a, group.b)
    group.replicate(1, group.a)
    group.elect(group.b, 2, group.b, group.c)
    group.elect(group.a, 3, group.a, group.b)
    group.replicate(1, group.b)  # the same entry, of term 1
    yield
    group.a.node.commit_index = 2
    group.look()


@breaks("commit-fell")
def a_commit_index_falls(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.b.node.commit_index = 2
    group.look()
    yield
    group.b.node.commit_index = 1
    group.look()


# ------------------------------------------------------------------ acknowledgements
@breaks("early-ack")
def one_durable_copy_is_acknowledged(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.a.journal.append(1)
    group.b.journal.append(1, durable=False)
    group.look()
    yield
    group.acknowledge(3, 1)


@breaks("early-ack")
def copies_of_another_term_are_acknowledged(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.replicate(1, group.a, group.b)
    yield
    group.acknowledge(3, 2)


@breaks("acknowledged-twice")
def two_entries_are_acknowledged_at_one_index(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.elect(group.b, 2, group.b, group.c)
    for replica in group.replicas:
        replica.journal.cut(2)
        replica.journal.append(2)
    yield
    group.acknowledge(2, 2)


# ------------------------------------------------------------------ what is applied
@breaks("applied-differs")
def another_command_is_applied_at_an_index(group: SeenGroup) -> Iterator[None]:
    group.checker.applied(group.a, 2, 1, b"\0one", None)
    group.checker.applied(group.b, 2, 1, b"\0one", None)
    yield
    group.checker.applied(group.c, 2, 1, b"\0two", None)


@breaks("applied-differs")
def the_same_command_of_another_term_is_applied(group: SeenGroup) -> Iterator[None]:
    group.checker.applied(group.a, 2, 1, b"\0one", None)
    yield
    group.checker.applied(group.b, 2, 2, b"\0one", None)


@breaks("state-differs")
def the_same_entry_leads_to_another_state(group: SeenGroup) -> Iterator[None]:
    group.checker.applied(group.a, 2, 1, b"\0one", b"digest")
    group.checker.applied(group.b, 2, 1, b"\0one", None)  # too expensive to compute just now
    yield
    group.checker.applied(group.c, 2, 1, b"\0one", b"another")


@breaks("state-differs")
def a_disk_leads_to_another_state(group: SeenGroup) -> Iterator[None]:
    group.checker.rebuilt(group.a, b"digest", b"digest")
    yield
    group.checker.rebuilt(group.a, b"digest", b"another")


# ------------------------------------------------------------------ damage
@breaks("unfit-candidate")
def one_that_cannot_apply_its_log_stands_for_election(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.b.journal.damaged.add(2)
    group.look()
    group.c.journal.ballot = (2, "b")  # others may vote for any candidate
    group.look()
    yield
    group.b.journal.ballot = (2, "b")
    group.look()


# ------------------------------------------------------------------ after the calm
@breaks("stuck")
def nobody_leads_at_the_end(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.checker.end(group.replicas)
    group.a.node.ready = False
    yield
    group.checker.end(group.replicas)


@breaks("stuck")
def something_is_missing_after_all_the_time_there_was(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    yield
    group.checker.end(group.replicas, ["nothing was acknowledged"])


@breaks("quorum-lost-needlessly")
def nobody_leads_although_everything_is_there(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.a.node.ready = False
    yield
    group.checker.end(group.replicas, all_sound=lambda: True)


@breaks("stuck-learner")
def one_learns_for_ever(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.c.node.rejoining = True
    yield
    group.checker.end(group.replicas)


@breaks("not-converged")
def one_stays_behind(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.a.node.applied_index = group.b.node.applied_index = 2
    yield
    group.checker.end(group.replicas)


@breaks("lost-entry")
def an_acknowledged_entry_is_gone_at_the_end(group: SeenGroup) -> Iterator[None]:
    group.led_by_a()
    group.checker.end(group.replicas)
    group.c.journal.cut(2)
    yield
    group.checker.end(group.replicas)


# ------------------------------------------------------------------ the tests
@pytest.mark.parametrize(("kind", "story"), [pytest.param(*s, id=s[1].__name__) for s in STORIES])
def test_a_bad_step_is_reported(kind: str, story: Story) -> None:
    steps = story(SeenGroup())
    next(steps)
    with pytest.raises(Violation) as broken:
        next(steps, None)
    assert broken.value.kind == kind


def test_who_is_blind_to_a_kind_still_sees_the_others() -> None:
    """The controls need this where one invariant is always violated before another."""
    group = SeenGroup()
    group.checker.blind = frozenset(("two-leaders",))
    with pytest.raises(Violation) as broken:
        list(a_second_one_leads_the_same_term(group))
    assert broken.value.kind == "no-majority"
    blind = SeenGroup()
    blind.checker.blind = frozenset(("two-leaders", "no-majority"))
    list(a_second_one_leads_the_same_term(blind))
    assert blind.c.node.is_leader and blind.checker.elections == 2


def test_no_kind_is_without_a_story() -> None:
    kinds = {
        call.args[0].value
        for call in ast.walk(ast.parse(inspect.getsource(checks)))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "_broken"
        and isinstance(call.args[0], ast.Constant)
    }
    assert kinds == {kind for kind, _ in STORIES}


# ------------------------------------------------------------------ what is no violation
def test_a_sound_history_breaks_nothing() -> None:
    """Leaders of several terms, a truncation of unacknowledged entries, a crash, and a lost disk."""
    group = SeenGroup()
    group.led_by_a()
    group.a.journal.append(1)  # reaches nobody
    group.look()
    group.elect(group.b, 2, group.b, group.c)
    group.a.journal.cut(3)
    group.a.journal.ballot, group.a.node.term, group.a.node.is_leader = (2, None), 2, False
    group.replicate(2, *group.replicas)
    group.acknowledge(3, 2)
    group.b.node.replicator.progress["a"].match = group.b.node.replicator.progress["c"].match = 3
    for replica in group.replicas:
        replica.node.commit_index = replica.node.applied_index = 3
        group.checker.applied(replica, 2, 1, b"\0one", None)
        group.checker.applied(replica, 3, 2, b"\0two", b"digest")
    group.look()
    group.c.incarnation, group.c.learner = 2, True  # its disk is lost: it forgets, and promises nothing
    group.c.journal.ballot, group.c.node.commit_index = (0, None), 1
    group.look()
    group.c.learner, group.c.journal.ballot, group.c.node.commit_index = False, (2, None), 3
    group.look()
    group.checker.end(group.replicas)
    assert group.checker.acknowledged == {2: 1, 3: 2}
    assert group.checker.elections == 2
