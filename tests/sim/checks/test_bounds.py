"""Proves that each bound of bounds.py is checked: a replica of a sound simulation exceeds just this one.

The replica is a real one, in the middle of a schedule without faults. One field at a time is set to a value
that the code under test must never allow, and restored afterwards.
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
Tamper = Callable[[pytest.MonkeyPatch, SimReplica, Any], None]
#: (what is bounded, whether only a recount sees it, the function that exceeds the bound)
CASES: list[tuple[str, bool, Tamper]] = []


def exceeds(what: str, *, recount: bool = False) -> Callable[[Tamper], Tamper]:
    def register(tamper: Tamper) -> Tamper:
        CASES.append((what, recount, tamper))
        return tamper

    return register


# ------------------------------------------------------------------ log and messages
@exceeds("messages not yet read")
def inbox(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(replica.links, "inbox", [("r1", b"")] * (bounds.INBOX_MAX + 1))


@exceeds("bytes proposed")
def one_large_proposal(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(replica.node._proposals, "outstanding_bytes", COMMAND_BYTES_MAX + 1)


@exceeds("bytes proposed")
def many_proposals(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(replica.node._proposals, "_sizes", {1: 1, 2: replica.node.config.outstanding_bytes_max})
    patch.setattr(replica.node._proposals, "outstanding_bytes", replica.node.config.outstanding_bytes_max + 1)


@exceeds("bytes proposed", recount=True)
def proposed_bytes_miscounted(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(replica.node._proposals, "outstanding_bytes", replica.node.outstanding_bytes + 1)


@exceeds("entries proposed")
def entries_proposed(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    most = replica.node.config.outstanding_entries_max
    patch.setattr(replica.node._proposals, "_sizes", dict.fromkeys(range(most + 1), 0))


@exceeds("acknowledgements held back")
def acknowledgements_held(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(replica.node._guard, "_held", {name: {} for name in ("r0", "r1", "r2")})


@exceeds("bytes under way to ")
def window(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    config, progress = replica.node.config, replica.node.replicator._progress
    most = config.window_bytes + max(config.send_batch_bytes, COMMAND_BYTES_MAX)
    patch.setattr(next(iter(progress.values())), "in_flight_bytes", most + 1)


@exceeds("bytes under way to ")
def window_below_zero(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(next(iter(replica.node.replicator._progress.values())), "in_flight_bytes", -1)


@exceeds("durable bytes in the entry cache")
def cache_of_durable_entries(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(replica.journal._cache, "_entries", {1: bytes(CACHE_BYTES + 1)})
    patch.setattr(replica.journal._cache, "_bytes", CACHE_BYTES + 1)


@exceeds("bytes in the entry cache", recount=True)
def cache_miscounted(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(replica.journal._cache, "_bytes", replica.journal._cache._bytes - 1)


# ------------------------------------------------------------------ requests and transactions
@exceeds("bytes of requests that wait")
def one_large_request(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(broker.admission, "_queued_bytes", bounds.REQUEST_BYTES_MAX + 1)


@exceeds("bytes of requests that wait")
def many_requests(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(broker.admission, "_queue", [object(), object()])
    patch.setattr(broker.admission, "_queued_bytes", broker.admission._queue_bytes_max + 1)


@exceeds("bytes of requests that wait", recount=True)
def waiting_requests_miscounted(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(broker.admission, "_queued_bytes", broker.admission._queued_bytes + 1)


@exceeds("entries in flight")
def entries_in_flight(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(broker, "_in_flight", broker.limits.entries_in_flight + 1)


@exceeds("open of ")
def open_of_a_topic(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    counts = next(t.open_by_topic for t in broker.state.transactions.apps.values() if t.open_by_topic)
    patch.setitem(counts, next(iter(counts)), broker.limits.open_transactions_max + 1)


@exceeds("open of ", recount=True)
def open_miscounted(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    counts = next(t.open_by_topic for t in broker.state.transactions.apps.values() if t.open_by_topic)
    topic = next(iter(counts))
    patch.setitem(counts, topic, counts[topic] + 1)


@exceeds("checks queued")
def checks_queued(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    due = broker.state.due
    patch.setattr(due, "_queued", 2 * broker.state.transactions.open_count() + 2 * due._slack + 1)


@exceeds("checks queued", recount=True)
def checks_miscounted(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(broker.state.due, "_queued", broker.state.due._queued + 1)


@exceeds("pairs with due checks")
def pairs_of_which_nobody_hears(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setitem(broker.state.due._due, ("nobody", "t"), deque(["never named"]))


@exceeds("order of checks")
def order_of_checks(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    due = broker.state.due
    patch.setattr(due, "_order", list(range(2 * len(due._buckets) + bounds.GONE_BUCKETS_MAX + 1)))


@exceeds("leases of checks")
def leases(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    opened = broker.state.transactions.open_count()
    patch.setattr(broker.state.due, "_leases", {("shop", str(n)): 0 for n in range(opened + 1)})


@exceeds("settled", recount=True)
def settled_miscounted(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(broker.state.transactions, "_young", broker.state.transactions._young + 1)


@exceeds("settled and remembered", recount=True)
def settled_kept_for_ever(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    most = 2 * (broker.state.settings.settled_generation + bounds.SETTLED_AT_ONCE)
    table = next(iter(broker.state.transactions.apps.values()))
    patch.setattr(table.settled, "old", dict.fromkeys(range(most + 1)))


@exceeds(r"batches remembered \(young\)", recount=True)
def batches_young(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    most = broker.state.settings.producers_generation
    patch.setattr(broker.state.producers, "young", dict.fromkeys(range(most + 1)))


@exceeds(r"batches remembered \(old\)", recount=True)
def batches_old(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    most = broker.state.settings.producers_generation
    patch.setattr(broker.state.producers, "old", dict.fromkeys(range(most + 1)))


@exceeds("decisions in the audit trail", recount=True)
def audit_trail(patch: pytest.MonkeyPatch, replica: SimReplica, broker: Any) -> None:
    patch.setattr(broker.state.transactions, "audit", [None] * (bounds.AUDIT_KEPT + 1))


# ------------------------------------------------------------------ the tests
def busy_leader() -> SimReplica:
    """A leader with transactions and requests, some seconds after its start."""
    simulation = Simulation(
        7, Plan.of(7, size=3, kind="fifo"), workload=BrokerWorkload(), faults=[], chaos_s=60.0
    )
    for replica in simulation.replicas:
        simulation.world.later(replica.rng.random() * 0.1, replica.start)
    simulation.world.later(0.5, simulation._act)
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


@pytest.mark.parametrize(("what", "recount", "tamper"), [pytest.param(*c, id=c[2].__name__) for c in CASES])
def test_what_exceeds_a_bound_is_reported(
    leader: SimReplica, what: str, recount: bool, tamper: Tamper, monkeypatch: pytest.MonkeyPatch
) -> None:
    tamper(monkeypatch, leader, leader.app.replica)  # type: ignore[attr-defined]
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
    ticks = sum(r._ticks for r in replica._sim.replicas)
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


def test_a_table_that_nobody_thought_of_is_reported(
    leader: SimReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = leader.app.replica.admission  # type: ignore[attr-defined]
    monkeypatch.setattr(admission, "_by_topic", {}, raising=False)
    with pytest.raises(Violation, match=r"no bound is known for Admission\._by_topic"):
        check_tables(leader)


@pytest.mark.parametrize(
    ("path", "left_behind"),
    [("_deciding", {"gone": set()}), ("_growing", {"gone": {}}), ("_opening", {("gone", "t"): 0})],
)
def test_what_is_left_behind_is_reported(
    leader: SimReplica, monkeypatch: pytest.MonkeyPatch, path: str, left_behind: Any
) -> None:
    """Apps come and go, so an empty set or a zero count that is kept for each of them is a leak."""
    admission = leader.app.replica.admission  # type: ignore[attr-defined]
    monkeypatch.setattr(admission, path, getattr(admission, path) | left_behind)
    with pytest.raises(Violation, match=rf"Admission\.{path}"):
        check_tables(leader)


def test_tables_beside_the_replica_are_looked_at(leader: SimReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a coordinator of consumer groups, and of the leader's work on transactions over groups."""
    app = leader.app
    assert isinstance(app, BrokerApplication)
    monkeypatch.setattr(app, "beside", [])
    coordinator = service_of(leader._world, leader, app).groups._coordinator
    app.beside.append(work := Branches(app.replica.state, cast(Any, None), print))
    check_tables(leader)
    work._failures.update(range(100))
    with pytest.raises(Violation, match=r"Branches\._failures"):
        check_tables(leader)
    work._failures.clear()
    topics = {f"t{n}": 20 for n in range(20)}
    joined = coordinator.join("g", "m", [*topics], 10.0, 0.0, partitions=topics.get, had_offsets=False)
    assert isinstance(joined, GroupJoined)
    with pytest.raises(Violation, match=r"_Group\.(last_given|partitions|target)"):
        check_tables(leader)


def test_no_bound_is_without_a_case() -> None:
    for what, recount in _bounds():
        assert any(case[0].startswith(what) and case[1] == recount for case in CASES), (what, recount)


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
