"""Proves that each bound of bounds.py is checked: a replica of a sound simulation exceeds just this one.

The replica is a real one, in the middle of a schedule without faults. One field at a time gets a value that
the code under test must never allow, and is restored afterwards.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from escrowmq.actors.client.consumer_groups import GroupJoined
from escrowmq.replication.raft.node import COMMAND_BYTES_MAX
from escrowmq.replication.replica.branches import Branches
from tests.sim.checks import bounds
from tests.sim.checks.bounds import RECOUNT_EVERY, check_bounds
from tests.sim.checks.tables import BOUNDS, check_tables
from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.environment.world import START_S, Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.group_service import service_of
from tests.sim.group.replica import CACHE_BYTES, SimReplica
from tests.sim.group.simulation import Plan, Simulation

ROOT = Path(__file__).resolve().parents[3]
#: An object of the replica, one of its fields, and a value that the code under test must never give it. Of
#: some objects several.
Fields = tuple[object, dict[str, object]]
Exceed = Callable[[SimReplica, Any], Fields]


def _outstanding(replica: SimReplica, broker: Any) -> Fields:
    most = replica.node.config.outstanding_bytes_max
    return replica.node.proposals, {"sizes": {1: 1, 2: most}, "outstanding_bytes": most + 1}


def _window(replica: SimReplica, in_flight_bytes: int) -> Fields:
    return next(iter(replica.node.replicator.progress.values())), {"in_flight_bytes": in_flight_bytes}


def _window_max(replica: SimReplica) -> int:
    config = replica.node.config
    return config.window_bytes + max(config.send_batch_bytes, COMMAND_BYTES_MAX)


def _open(broker: Any, count: Callable[[int], int]) -> Fields:
    table = next(t for t in broker.state.transactions.apps.values() if t.open_by_topic)
    (topic, opened), *_ = table.open_by_topic.items()
    return table, {"open_by_topic": {**table.open_by_topic, topic: count(opened)}}


def _keys(count: int) -> dict[int, None]:
    return dict.fromkeys(range(count))


#: What is bounded, and what exceeds the bound.
AT_ONCE: list[tuple[str, Exceed]] = [
    ("messages not yet read", lambda r, b: (r.links, {"inbox": [("r1", b"")] * (bounds.INBOX_MAX + 1)})),
    ("bytes proposed", lambda r, b: (r.node.proposals, {"outstanding_bytes": COMMAND_BYTES_MAX + 1})),
    ("bytes proposed", _outstanding),
    (
        "entries proposed",
        lambda r, b: (r.node.proposals, {"sizes": _keys(r.node.config.outstanding_entries_max + 1)}),
    ),
    ("acknowledgements held back", lambda r, b: (r.node.guard, {"held": _keys(3)})),
    ("bytes under way to ", lambda r, b: _window(r, _window_max(r) + 1)),
    ("bytes under way to ", lambda r, b: _window(r, -1)),
    (
        "durable bytes in the entry cache",
        lambda r, b: (
            r.journal.cache,
            {"entries": {1: bytes(CACHE_BYTES + 1)}, "held_bytes": CACHE_BYTES + 1},
        ),
    ),
    (
        "bytes of requests that wait",
        lambda r, b: (b.admission, {"queued_bytes": bounds.REQUEST_BYTES_MAX + 1}),
    ),
    (
        "bytes of requests that wait",
        lambda r, b: (
            b.admission,
            {"queue": [object(), object()], "queued_bytes": b.admission.queue_bytes_max + 1},
        ),
    ),
    ("entries in flight", lambda r, b: (b, {"in_flight": b.limits.entries_in_flight + 1})),
    ("open of ", lambda r, b: _open(b, lambda _: b.limits.open_transactions_max + 1)),
    (
        "checks queued",
        lambda r, b: (
            b.state.due,
            {"queued": 2 * b.state.transactions.open_count() + 2 * b.state.due.slack + 1},
        ),
    ),
    (
        "pairs with due checks",
        lambda r, b: (
            b.state.due,
            {"queues": {**b.state.due.queues, ("nobody", "t"): deque(["never named"])}},
        ),
    ),
    (
        "order of checks",
        lambda r, b: (
            b.state.due,
            {"order": list(range(2 * len(b.state.due.buckets) + bounds.GONE_BUCKETS_MAX + 1))},
        ),
    ),
    (
        "leases of checks",
        lambda r, b: (b.state.due, {"leases": _keys(b.state.transactions.open_count() + 1)}),
    ),
]
#: The same of what only a recount sees: sums that are wrong by one, and tables that change slowly.
BY_RECOUNT: list[tuple[str, Exceed]] = [
    (
        "bytes proposed",
        lambda r, b: (r.node.proposals, {"outstanding_bytes": r.node.proposals.outstanding_bytes + 1}),
    ),
    (
        "bytes in the entry cache",
        lambda r, b: (r.journal.cache, {"held_bytes": r.journal.cache.held_bytes - 1}),
    ),
    (
        "bytes of requests that wait",
        lambda r, b: (b.admission, {"queued_bytes": b.admission.queued_bytes + 1}),
    ),
    ("open of ", lambda r, b: _open(b, lambda opened: opened + 1)),
    ("checks queued", lambda r, b: (b.state.due, {"queued": b.state.due.queued + 1})),
    ("settled", lambda r, b: (b.state.transactions, {"young": b.state.transactions.young + 1})),
    (
        "settled and remembered",
        lambda r, b: (
            next(iter(b.state.transactions.apps.values())).settled,
            {"old": _keys(2 * (b.state.settings.settled_generation + bounds.SETTLED_AT_ONCE) + 1)},
        ),
    ),
    *(
        (
            rf"batches remembered \({name}\)",
            lambda r, b, name=name: (
                b.state.producers,
                {name: _keys(b.state.settings.producers_generation + 1)},
            ),
        )
        for name in ("young", "old")
    ),
    (
        "decisions in the audit trail",
        lambda r, b: (b.state.transactions, {"audit": [None] * (bounds.AUDIT_KEPT + 1)}),
    ),
]
CASES = [(*case, False) for case in AT_ONCE] + [(*case, True) for case in BY_RECOUNT]


# ------------------------------------------------------------------ the tests
def busy_leader() -> SimReplica:
    """A leader with transactions and requests, some seconds after its start."""
    simulation = Simulation(
        7, Plan.of(7, size=3, kind="fifo"), workload=BrokerWorkload(), faults=[], chaos_s=60.0
    )
    for replica in simulation.replicas:
        simulation.world.later(replica.rng.random() * 0.1, replica.start)
    simulation.world.later(0.5, simulation.act)
    simulation.world.run(START_S + 2.5)
    leader = next(r for r in simulation.replicas if r.node.is_leader)
    while not leader.app.replica.state.transactions.open_count():  # type: ignore[attr-defined]
        simulation.world.run(simulation.world.now + 0.05)
    return leader


@pytest.fixture(scope="module")
def leader() -> SimReplica:
    return busy_leader()


@pytest.mark.parametrize("recount", [False, True])
def test_a_sound_replica_is_within_all_bounds(leader: SimReplica, recount: bool) -> None:
    check_bounds(leader, CACHE_BYTES, recount=recount)


@pytest.mark.parametrize(("what", "exceed", "recount"), CASES)
def test_what_exceeds_a_bound_is_reported(
    leader: SimReplica, what: str, exceed: Exceed, recount: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, fields = exceed(leader, leader.app.replica)  # type: ignore[attr-defined]
    for name, value in fields.items():
        monkeypatch.setattr(owner, name, value)
    if recount:
        check_bounds(leader, CACHE_BYTES, recount=False)  # the sums alone look correct
    with pytest.raises(Violation, match=what) as broken:
        check_bounds(leader, CACHE_BYTES, recount=recount)
    assert broken.value.kind == "unbounded"


def test_every_tick_of_a_replica_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(
        "tests.sim.group.replica.check_bounds", lambda *_, recount, has_applied: seen.append(recount)
    )
    replica = busy_leader()
    ticks = sum(r.ticks for r in replica.sim.replicas)
    assert len(seen) == ticks and abs(sum(seen) - ticks // RECOUNT_EVERY) <= 3


def test_every_container_of_a_sound_replica_has_a_bound(leader: SimReplica) -> None:
    check_tables(leader)
    assert not [path for path in BOUNDS if not path.rpartition(".")[2]]


def test_no_bound_is_left_of_a_container_that_is_gone() -> None:
    """By the words in the files of its class. Core's are pysyncobj's, under names that the class changes."""
    rooms = (path for room in ("actors", "feedback", "replication") for path in (ROOT / room).rglob("*.py"))
    texts = [path.read_text() for path in (*rooms, *(ROOT / "tests" / "sim").rglob("*.py"))]
    words: dict[str, set[str]] = {}
    for text in texts:
        for name in re.findall(r"^class (\w+)", text, re.MULTILINE):
            words.setdefault(name, set()).update(re.findall(r"\w+", text))
    named = {tuple(re.findall(r"\w+", path)[:2]) for path in BOUNDS}
    ours = {(kind, attribute) for kind, attribute in named if kind not in ("Core", "_VotesOut")}
    gone = [(kind, attribute) for kind, attribute in ours if attribute not in words.get(kind, ())]
    assert not gone and len(ours) > 100


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("_by_topic", {}, "no bound is known for "),
        # Apps come and go, so an empty set or a zero count that is kept for each of them is a leak.
        ("_deciding", {"gone": set()}, ""),
        ("_growing", {"gone": {}}, ""),
        ("_opening", {("gone", "t"): 0}, ""),
    ],
)
def test_a_table_that_nobody_thought_of_and_what_is_left_behind_are_reported(
    leader: SimReplica, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, told: str
) -> None:
    admission = leader.app.replica.admission  # type: ignore[attr-defined]
    monkeypatch.setattr(admission, name, getattr(admission, name, {}) | value, raising=False)
    with pytest.raises(Violation, match=rf"{told}Admission\.{name}"):
        check_tables(leader)


def test_tables_beside_the_replica_are_looked_at() -> None:
    """Those of a coordinator of consumer groups, and of the leader's work on transactions over groups."""
    leader = busy_leader()
    app = leader.app
    assert isinstance(app, BrokerApplication)
    coordinator = service_of(leader.sim.world, leader, app).groups._coordinator
    app.beside.append(work := Branches(app.replica.state, cast(Any, None), print))
    check_tables(leader)
    work.counts.update(map(str, range(200)))
    with pytest.raises(Violation, match=r"Branches\.counts"):
        check_tables(leader)
    work.counts.clear()
    topics = {f"t{n}": 20 for n in range(20)}
    joined = coordinator.join("g", "m", [*topics], 10.0, 0.0, partitions=topics.get, had_offsets=False)
    assert isinstance(joined, GroupJoined)
    with pytest.raises(Violation, match=r"_Group\.(last_given|partitions|target)"):
        check_tables(leader)


def test_no_bound_is_without_a_case() -> None:
    for what, recount in _bounds():
        assert any(case[0].startswith(what) and case[2] == recount for case in CASES), (what, recount)


def _bounds() -> Iterator[tuple[str, bool]]:
    """The bounds that bounds.py checks, by the names in its calls, and whether each needs a recount."""
    for function in ast.parse(inspect.getsource(bounds)).body:
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id not in ("_inside", "_same", "_check_generations"):
                continue
            what = call.args[1]
            first = what.values[0] if isinstance(what, ast.JoinedStr) else what
            if isinstance(first, ast.Constant):
                assert isinstance(function, ast.FunctionDef)
                yield str(first.value), function.name.startswith("_recount")
