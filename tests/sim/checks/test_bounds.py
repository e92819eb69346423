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
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

import pytest

from escrowmq.actors.client.consumer_groups import GroupJoined
from escrowmq.replication.raft.node import COMMAND_BYTES_MAX
from escrowmq.replication.replica.branches import Branches
from escrowmq.replication.state.transactions import AUDIT_KEPT
from tests.sim.checks import bounds
from tests.sim.checks.bounds import RECOUNT_EVERY, check_bounds
from tests.sim.checks.tables import BOUNDS, SETTLED_AT_ONCE, check_tables
from tests.sim.clients.broker_workload import BrokerWorkload
from tests.sim.environment.world import START_S, Violation
from tests.sim.group.broker_app import BrokerApplication
from tests.sim.group.group_service import service_of
from tests.sim.group.replica import CACHE_BYTES, SimReplica
from tests.sim.group.simulation import Plan, Simulation

ROOT = Path(__file__).resolve().parents[3]
#: What is bounded, the object that exceeds it, and its fields, with values that the code under test must
#: never give them (or what makes one, of the object and the replica); whether only a recount sees it.
CASES: list[tuple[str, Callable[[Any], Any], dict[str, Any], bool]] = []


def exceeds(what: str, owner: Callable[[Any], Any], *, recount: bool = False, **fields: Any) -> None:
    CASES.append((what, owner, fields, recount))


def keys(count: int) -> dict[int, None]:
    return dict.fromkeys(range(count))


def miscounted(what: str, owner: Callable[[Any], Any], field: str) -> None:
    exceeds(what, owner, recount=True, **{field: lambda o, r: getattr(o, field) + 1})


# ------------------------------------------------------------------ log and messages
proposals, cache = attrgetter("node.proposals"), attrgetter("journal.cache")


def sent(r: Any) -> Any:
    return next(iter(r.node.replicator.progress.values()))


def beyond_the_window(o: Any, r: Any) -> int:
    return int(r.node.config.window_bytes + max(r.node.config.send_batch_bytes, COMMAND_BYTES_MAX) + 1)


exceeds("messages not yet read", lambda r: r.links, inbox=[("r1", b"")] * (bounds.INBOX_MAX + 1))
exceeds("bytes proposed", proposals, outstanding_bytes=COMMAND_BYTES_MAX + 1)
exceeds(
    "bytes proposed",
    proposals,
    sizes=lambda o, r: {1: 1, 2: r.node.config.outstanding_bytes_max},
    outstanding_bytes=lambda o, r: r.node.config.outstanding_bytes_max + 1,
)
miscounted("bytes proposed", proposals, "outstanding_bytes")
exceeds("entries proposed", proposals, sizes=lambda o, r: keys(r.node.config.outstanding_entries_max + 1))
exceeds("acknowledgements held back", lambda r: r.node.guard, held=keys(3))
exceeds("bytes under way to ", sent, in_flight_bytes=beyond_the_window)
exceeds("bytes under way to ", sent, in_flight_bytes=-1)
exceeds(
    *("durable bytes in the entry cache", cache),
    entries={1: bytes(CACHE_BYTES + 1)},
    held_bytes=CACHE_BYTES + 1,
)
miscounted("bytes in the entry cache", cache, "held_bytes")


# ------------------------------------------------------------------ requests and transactions
broker, admission = attrgetter("app.replica"), attrgetter("app.replica.admission")
state = "app.replica.state."
producers, due = attrgetter(state + "producers"), attrgetter(state + "due")
transactions = attrgetter(state + "transactions")


def app(r: Any) -> Any:
    return next(table for table in transactions(r).apps.values() if table.open_by_topic)


def one_more(o: Any, r: Any) -> dict[str, int]:
    return {topic: count + 1 for topic, count in o.open_by_topic.items()}


def too_many(o: Any, r: Any) -> dict[str, int]:
    return dict.fromkeys(o.open_by_topic, broker(r).limits.open_transactions_max + 1)


def a_generation(o: Any, r: Any) -> dict[int, None]:
    return keys(broker(r).state.settings.producers_generation + 1)


def two_settled_generations(o: Any, r: Any) -> dict[int, None]:
    return keys(2 * (broker(r).state.settings.settled_generation + SETTLED_AT_ONCE) + 1)


WAIT = "bytes of requests that wait"
exceeds(WAIT, admission, queued_bytes=bounds.REQUEST_BYTES_MAX + 1)
exceeds(WAIT, admission, queue=[0, 1], queued_bytes=lambda o, r: o.queue_bytes_max + 1)
miscounted(WAIT, admission, "queued_bytes")
exceeds("entries in flight", broker, in_flight=lambda o, r: o.limits.entries_in_flight + 1)
exceeds("open of ", app, open_by_topic=too_many)
exceeds("open of ", app, recount=True, open_by_topic=one_more)
exceeds("checks queued", due, queued=lambda o, r: 2 * transactions(r).open_count() + 2 * o.slack + 1)
miscounted("checks queued", due, "queued")
exceeds("pairs with due checks", due, queues=lambda o, r: {**o.queues, ("nobody", "t"): deque(["unnamed"])})
exceeds("order of checks", due, order=lambda o, r: keys(2 * len(o.buckets) + bounds.GONE_BUCKETS_MAX + 1))
exceeds("leases of checks", due, leases=lambda o, r: keys(transactions(r).open_count() + 1))
miscounted("settled", transactions, "young")
exceeds("settled and remembered", lambda r: app(r).settled, recount=True, old=two_settled_generations)
exceeds(r"batches remembered \(young\)", producers, recount=True, young=a_generation)
exceeds(r"batches remembered \(old\)", producers, recount=True, old=a_generation)
exceeds("decisions in the audit trail", transactions, recount=True, audit=[None] * (AUDIT_KEPT + 1))


# ------------------------------------------------------------------ the tests
def busy_leader() -> SimReplica:
    """A leader with transactions and requests, some seconds after its start."""
    simulation = Simulation(
        7, Plan.of(7, size=3, kind="fifo"), workload=BrokerWorkload(), faults=[], chaos_s=60.0
    )
    simulation.boot()
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


@pytest.mark.parametrize(("what", "owner", "fields", "recount"), CASES)
def test_what_exceeds_a_bound_is_reported(
    leader: SimReplica,
    what: str,
    owner: Callable[[Any], Any],
    fields: dict[str, Any],
    recount: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exceeding = owner(leader)
    values = {name: v(exceeding, leader) if callable(v) else v for name, v in fields.items()}
    for name, value in values.items():
        monkeypatch.setattr(exceeding, name, value)
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
        assert any(case[0].startswith(what) and case[3] == recount for case in CASES), (what, recount)


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
