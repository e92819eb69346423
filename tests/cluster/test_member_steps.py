"""Steps towards the replicas that are wanted: whatever dies in between, no step takes what must stay, and in
the end there is what was asked for. The leader's part is the real one (replication/raft/members.py)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.cluster.supervisor.member_steps import (
    COPIES_MAX,
    ClusterNodes,
    Do,
    Group,
    MemberStep,
    Node,
    Seat,
    best_leader,
    cluster_nodes,
    moves_done,
    next_step,
    next_steps,
)
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.format.membership import Members, founding
from escrowmq.replication.raft.members import Act, Goal, after, refusal
from escrowmq.replication.raft.members import next_step as leaders_step

NODES = tuple(f"n{i}" for i in range(6))  # the first is Ray's head
PATIENCE_S = 600.0


@dataclass
class World:
    """One group on some nodes. A step is carried out at once; what dies stays dead until it is started."""

    wanted: int
    members: Members
    seats: dict[int, Seat]
    nodes: set[str] = field(default_factory=lambda: set(NODES))
    retired: dict[int, Seat] = field(default_factory=dict)
    moves: dict[int, str] = field(default_factory=dict)
    drained: set[str] = field(default_factory=set)
    maintained: set[str] = field(default_factory=set)
    leader: int | None = 0
    now: float = 0.0
    away_since: dict[int, float] = field(default_factory=dict)
    filled: set[int] = field(default_factory=set)
    steps: list[MemberStep] = field(default_factory=list)
    ever: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, replicas: int, wanted: int | None = None) -> World:
        seats = {rid: Seat(0, rid, NODES[rid % len(NODES)]) for rid in range(replicas)}
        members = founding([str(rid) for rid in range(replicas)])
        return cls(wanted or replicas, members, seats, filled=set(seats), ever=set(seats))

    @property
    def voters(self) -> set[int]:
        return set(map(int, self.members.voters))

    @property
    def running(self) -> frozenset[int]:
        return frozenset(rid for rid, seat in self.seats.items() if seat.node in self.nodes)

    def look(self) -> None:
        """Acts as the supervisor's look, and as an election where one is due."""
        self.now += 1.0
        running = self.running
        self.away_since = {r: self.away_since.get(r, self.now) for r in self.seats if r not in running}
        if 2 * len(running & self.voters) <= len(self.voters):
            self.leader = None
        elif self.leader not in running & self.voters:
            self.leader = min(running & self.voters)
        for rid, target in list(self.moves.items()):
            if rid in moves_done(self.group()):
                assert target
                del self.moves[rid]

    def group(self) -> Group:
        m = self.members
        report = MembersReport(
            version=m.version,
            voters=list(map(int, m.voters)),
            learners=list(map(int, m.learners)),
            highest=m.highest,
        )
        told = None if self.leader is None else report
        return Group(0, self.wanted, dict(self.seats), told, self.leader, self.running, dict(self.moves),
                     dict(self.retired), dict(self.away_since))  # fmt: skip

    def fleet(self) -> ClusterNodes:
        nodes = [Node(name, name, "", head=name == NODES[0]) for name in sorted(self.nodes)]
        return cluster_nodes(nodes, [self.group()], self.drained, self.maintained)

    def turn(self) -> MemberStep | None:
        """One look and one step."""
        self.look()
        step = next_step(self.group(), self.fleet(), self.now, PATIENCE_S)
        if step is not None:
            self.steps.append(step)
            self.carry_out(step)
        return step

    def carry_out(self, step: MemberStep) -> None:
        if step.do is Do.PLACE:
            assert step.rid not in self.ever, "a number is used again"
            assert step.node in self.nodes - self.drained - self.maintained
            free = self.nodes - self.drained - self.maintained - {seat.node for seat in self.seats.values()}
            assert step.node in free or not free, "two of a group on one node, and another one is free"
            self.ever.add(step.rid)
            self.seats[step.rid] = Seat(0, step.rid, step.node)
        elif step.do is Do.CHANGE:
            self.change(step)
        elif step.do is Do.HAND_OVER:
            assert step.rid in self.running & self.voters
            self.leader = step.rid
        elif step.do is Do.RETIRE:
            assert str(step.rid) not in self.members.all and step.rid <= self.members.highest
            self.retired[step.rid] = self.seats.pop(step.rid)
        elif step.do is Do.CLEAR:
            assert self.retired[step.rid].node in self.nodes
            assert 2 * len(self.running & self.voters) > len(self.voters)
            del self.retired[step.rid]
        self.check()

    def change(self, step: MemberStep) -> None:
        """The leader's answer."""
        assert self.leader is not None
        goal = Goal(step.text, tuple(map(str, step.add)), tuple(map(str, step.remove)))
        taken = leaders_step(self.members, goal, str(self.leader), lambda rid: int(rid) in self.filled)
        if taken.act is Act.WAIT:
            self.filled.add(int(taken.replica))  # by its next turn
        elif taken.act is Act.HAND_OVER:
            self.leader = min(self.voters & self.running - {self.leader})
        elif taken.act is not Act.DONE:
            assert refusal(self.members, taken, str(self.leader)) is None, f"{taken} is refused"
            before = self.voters
            self.members = after(self.members, taken, goal.id)
            left = self.voters
            assert len(before ^ left) <= 1
            if left < before:
                assert 2 * len(left & self.running) > len(left), "a removal left no running majority"

    def check(self) -> None:
        assert self.voters, "nobody is left"
        assert self.voters <= set(self.seats), "a voter's process was ended"
        newcomers = set(self.seats) - self.voters
        assert len(newcomers) <= 2
        assert len(self.voters) <= 7

    def to_the_end(self, turns: int = 150) -> None:
        """Until nothing is to be done."""
        for _ in range(turns):
            if self.turn() is None:
                break
        else:
            raise AssertionError(f"no end: {self.steps[-5:]}")
        assert len(self.voters) == self.wanted and not self.members.learners
        assert set(self.seats) == self.voters
        assert not {seat.node for seat in self.seats.values()} & self.drained
        assert not {seat for seat in self.retired.values() if seat.node in self.nodes}
        assert not self.moves


def texts(world: World) -> list[str]:
    return [step.text for step in world.steps if step.do is not Do.WAIT]


def test_from_one_to_three_to_five_and_back() -> None:
    world = World.of(1)
    for wanted in (3, 5, 3, 1):
        world.wanted = wanted
        world.to_the_end()
    assert world.voters and world.members.highest == 4
    assert {seat.node for seat in world.seats.values()}.isdisjoint({NODES[0]}), "the head is left first"


def test_one_replica_comes_after_the_other_and_each_votes_before_the_next() -> None:
    world = World.of(1, wanted=3)
    world.to_the_end()
    assert texts(world) == [
        "replica 1 is placed on n1",
        "replica 1 on n1 becomes a learner",
        "replica 1 on n1 catches up",
        "replica 1 on n1 catches up",
        "replica 2 is placed on n2",
        "replica 2 on n2 becomes a learner",
        "replica 2 on n2 catches up",
        "replica 2 on n2 catches up",
    ]


def test_a_move_brings_the_new_one_first_and_takes_the_directory_last() -> None:
    world = World.of(3)
    world.moves = {1: "n4"}
    world.to_the_end()
    assert world.voters == {0, 2, 3} and world.seats[3].node == "n4"
    assert texts(world)[0] == "replica 3 is placed on n4"
    assert texts(world)[-3:] == [
        "replica 1 is removed",
        "replica 1 on n1 is stopped: it was removed",
        "the directory of replica 1 on n1 is removed",
    ]


def test_a_move_is_done_when_the_replica_itself_was_built_anew_on_that_node() -> None:
    """Its old node was lost before the move began, and the supervisor has replaced it."""
    world = World.of(3)
    world.moves, world.nodes = {1: "n4"}, set(NODES) - {"n1"}
    world.seats[1] = Seat(0, 1, "n4", incarnation=1)
    assert world.turn() is None and not world.moves
    assert world.seats[1].node == "n4" and len(world.seats) == 3


def test_a_leader_hands_over_before_its_node_is_drained_or_goes_away_for_a_while() -> None:
    for how in ("drained", "maintained"):
        world = World.of(3)
        getattr(world, how).add("n0")
        world.to_the_end()
        assert world.steps[0].do is Do.HAND_OVER and world.leader != 0
        assert (0 in world.voters) is (how == "maintained")


def test_the_lead_goes_where_it_is_wanted_if_that_one_may_have_it() -> None:
    world = World.of(3)
    world.look()

    def step(fleet: ClusterNodes | None = None, **changed: object) -> MemberStep | None:
        group = replace(world.group(), lead=2, **changed)  # type: ignore[arg-type]
        return next_step(group, fleet or world.fleet(), 0.0, PATIENCE_S)

    wanted = step()
    assert wanted is not None and (wanted.do, wanted.rid) == (Do.HAND_OVER, 2)
    waits = step(running=frozenset({0, 1}), away_since={2: 0.0})
    assert waits is not None and waits.do is Do.WAIT and "is not running" in waits.text
    assert step(leader=2) is None and step(away_since={2: -PATIENCE_S}) is None, "it has it; it is lost"
    closed = replace(world.fleet(), maintained=frozenset({NODES[2]}))
    assert step(closed) is None, "it would be handed over again at once"


def test_the_head_is_taken_only_if_there_is_no_other_node() -> None:
    world = World.of(3)
    world.seats = {rid: Seat(0, rid, f"n{rid + 1}") for rid in range(3)}
    world.moves, world.nodes = {}, set(NODES) - {"n5"}
    world.drained = {"n1"}
    world.to_the_end()
    assert world.seats[3].node == "n4"
    world.drained = {"n1", "n2"}
    world.to_the_end()
    assert world.seats[4].node == "n0"


def test_no_voter_goes_while_the_others_are_no_running_majority() -> None:
    world = World.of(3, wanted=1)
    world.nodes -= {"n2"}
    world.leader = 0
    assert world.turn() == MemberStep(0, Do.CHANGE, "replica 2 is removed", rid=2, remove=(2,)), "it is lost"
    world.nodes -= {"n1"}  # of two voters one is left: no leader, and nothing can be done
    for _ in range(5):
        step = world.turn()
        assert step is not None and step.do is Do.WAIT
    world.nodes |= {"n1"}
    world.to_the_end()


def test_a_replica_is_not_taken_away_from_a_group_that_needs_it() -> None:
    group = World.of(3, wanted=1).group()
    group = replace(group, running=frozenset((0,)), leader=0)
    step = next_step(group, World.of(3).fleet(), 0.0, PATIENCE_S)
    assert step is not None and step.do is not Do.CHANGE


def test_a_newcomer_whose_node_is_lost_is_given_up_and_its_number_too() -> None:
    world = World.of(3, wanted=5)
    assert (step := world.turn()) is not None and (step.rid, step.node) == (3, "n3")
    world.nodes -= {"n3"}
    assert (step := world.turn()) is not None and step.do is Do.WAIT, "it may be a reboot"
    world.now += PATIENCE_S
    world.to_the_end()
    assert world.voters == {0, 1, 2, 4, 5}
    assert set(world.retired) == {3}, "its directory goes when the node is back"
    world.nodes |= {"n3"}
    world.to_the_end()
    assert not world.retired


def test_what_is_not_wanted_any_more_is_turned_round() -> None:
    world = World.of(3, wanted=5)
    world.turn()
    world.turn()
    world.wanted = 3
    world.to_the_end()
    assert world.voters == {0, 1, 2} and world.members.highest == 3


def test_a_drain_waits_for_a_node_that_is_free_of_the_group() -> None:
    world = World.of(3)
    world.nodes, world.drained = set(NODES[:3]), {"n1"}
    step = world.turn()
    assert step is not None and (step.do, step.text) == (
        Do.WAIT,
        "every usable node already has a replica of this group",
    )
    world.nodes |= {"n3"}
    world.to_the_end()
    assert world.seats[3].node == "n3"


def test_a_move_to_a_node_that_is_away_waits_for_it() -> None:
    world = World.of(3)
    world.moves, world.nodes = {1: "n4"}, set(NODES) - {"n4"}
    step = world.turn()
    assert step is not None and step.text == "node n4 is down, drained or in maintenance"
    world.nodes |= {"n4"}
    world.to_the_end()


def test_with_seven_voters_one_goes_when_another_one_is_there_that_cannot_vote_yet() -> None:
    world = World.of(7)
    world.seats = {rid: Seat(0, rid, f"m{rid}") for rid in range(7)}
    world.nodes |= {f"m{rid}" for rid in range(7)}
    world.moves = {6: "n4"}
    world.to_the_end()
    assert world.seats[7].node == "n4"


def test_on_one_node_replicas_share_it() -> None:
    world = World.of(1, wanted=3)
    world.nodes = {"n0"}
    world.to_the_end()
    world.wanted = 1
    world.to_the_end()


def test_a_voter_without_a_seat_is_replaced() -> None:
    """An older copy of the cluster's record was restored."""
    world = World.of(3)
    del world.seats[2]
    world.look()
    step = next_step(world.group(), world.fleet(), 0.0, PATIENCE_S)
    assert step is not None and step.do is Do.PLACE


def test_few_groups_fill_a_replica_at_a_time_and_not_all_on_one_node() -> None:
    groups = [replace(World.of(1, wanted=3).group(), gid=gid) for gid in range(5)]
    fleet = cluster_nodes([Node(name, name, "") for name in NODES], groups, (), ())
    steps = next_steps(groups, fleet, 0.0, PATIENCE_S)
    placing = [step for step in steps if step.do is Do.PLACE]
    assert len(placing) == COPIES_MAX and len({step.node for step in placing}) == COPIES_MAX
    assert [step.do for step in steps].count(Do.WAIT) == 5 - COPIES_MAX


def test_who_leads_next_is_where_few_lead() -> None:
    group = World.of(3).group()
    fleet = replace(World.of(3).fleet(), leads=Counter({"n1": 2, "n2": 1}))
    assert best_leader(group, fleet, (0, 1, 2)) == 2
    assert best_leader(group, replace(fleet, maintained=frozenset(("n2",))), (0, 1, 2)) == 1
    assert best_leader(replace(group, running=frozenset((0,))), fleet, (0, 1, 2)) is None


def test_who_leads_next_has_room() -> None:
    """Otherwise it would hand over again two seconds later."""
    group = World.of(3).group()
    fleet = replace(World.of(3).fleet(), leads=Counter({"n1": 2, "n2": 1}))
    assert best_leader(replace(group, scarce=frozenset((2,))), fleet, (0, 1, 2)) == 1
    assert best_leader(replace(group, scarce=frozenset((1, 2))), fleet, (0, 1, 2)) == 2, "any is better"


def test_a_leader_that_is_wanted_waits_until_it_has_room() -> None:
    world = World.of(3)
    group = replace(world.group(), lead=2, scarce=frozenset((2,)))
    step = next_step(group, world.fleet(), 0.0, PATIENCE_S)
    assert step is not None and step.do is Do.WAIT and "too little room" in step.text
    step = next_step(replace(group, scarce=frozenset()), world.fleet(), 0.0, PATIENCE_S)
    assert step is not None and (step.do, step.rid) == (Do.HAND_OVER, 2)
    step = next_step(replace(group, scarce=frozenset((0, 2))), world.fleet(), 0.0, PATIENCE_S)
    assert step is not None and step.do is Do.HAND_OVER, "the present one has none either"


def test_where_nothing_is_wanted_nothing_is_done() -> None:
    for replicas in (1, 3, 5):
        assert World.of(replicas).turn() is None


FAULTS = st.one_of(
    st.tuples(st.just("lose"), st.sampled_from(NODES)),
    st.tuples(st.just("return"), st.sampled_from(NODES)),
    st.tuples(st.just("replace"), st.tuples(st.integers(0, 9), st.sampled_from(NODES))),
    st.tuples(st.just("wait"), st.sampled_from((1.0, 700.0))),
    st.tuples(st.just("lead"), st.integers(0, 9)),
    st.tuples(st.just("want"), st.sampled_from((1, 3, 5))),
    st.tuples(st.just("drain"), st.sampled_from(NODES)),
    st.tuples(st.just("maintain"), st.sampled_from(NODES)),
    st.tuples(st.just("open"), st.sampled_from(NODES)),
    st.tuples(st.just("move"), st.tuples(st.integers(0, 9), st.sampled_from(NODES))),
    st.tuples(st.just("turns"), st.integers(1, 12)),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    first=st.sampled_from((1, 3, 5)), wanted=st.sampled_from((1, 3, 5)), faults=st.lists(FAULTS, max_size=25)
)
def test_whatever_happens_in_between_it_ends_as_wanted(
    first: int, wanted: int, faults: list[tuple[str, object]]
) -> None:
    """The rules are checked at each step (``World``). In the end all nodes are back; one may stay drained."""
    world = World.of(first, wanted)
    for kind, about in faults:
        happen(world, kind, about)
        world.turn()
    world.nodes, world.maintained = set(NODES), set()
    world.drained = set(sorted(world.drained)[:1])
    if world.drained:  # then there may be too few nodes for both
        world.moves = {}
    world.to_the_end()


def happen(world: World, kind: str, about: object) -> None:
    if kind == "lose":
        world.nodes.discard(str(about))
    elif kind == "return":
        world.nodes.add(str(about))
    elif kind == "replace":  # under its own number: see supervisor/member_steps.py
        assert isinstance(about, tuple)
        rid, node = about
        closed = world.drained | world.maintained | {seat.node for seat in world.seats.values()}
        if rid in world.voters - world.running and node in world.nodes - closed:
            world.seats[rid] = Seat(0, rid, node, world.seats[rid].incarnation + 1)
    elif kind == "wait":
        world.now += float(str(about))
    elif kind == "lead":
        if about in world.voters & world.running:
            world.leader = int(str(about))
    elif kind == "want":
        world.wanted = int(str(about))
    elif kind in ("drain", "maintain"):
        (world.drained if kind == "drain" else world.maintained).add(str(about))
    elif kind == "open":
        world.drained.discard(str(about))
        world.maintained.discard(str(about))
    elif kind == "move":
        assert isinstance(about, tuple)
        rid, node = about
        if rid in world.voters and node not in {seat.node for seat in world.seats.values()}:
            world.moves[rid] = node
    else:
        for _ in range(int(str(about))):
            world.turn()
