"""The simulator's bounds see what has grown, and counts that went wrong; a sound replica passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim import bounds
from tests.sim.bounds import GONE_BUCKETS_MAX, RECOUNT_EVERY, check_bounds
from tests.sim.broker_workload import BrokerWorkload
from tests.sim.replica import CACHE_BYTES, SimReplica
from tests.sim.simulation import Plan, Simulation
from tests.sim.world import START_S, Violation


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
    while not any(len(t.open) for t in state_of(leader).transactions.apps.values()):
        simulation.world.run(simulation.world.now + 0.05)
    return leader


def state_of(replica: SimReplica) -> Any:
    return replica.app.replica.state  # type: ignore[attr-defined]


def an_app(replica: SimReplica) -> Any:
    return next(t for t in state_of(replica).transactions.apps.values() if len(t.open))


def lower_open_limit(replica: SimReplica) -> None:
    broker = replica.app.replica  # type: ignore[attr-defined]
    broker.limits = type(broker.limits)(open_transactions_max=0)


def raise_counts(replica: SimReplica) -> None:
    counts = an_app(replica).open_by_topic
    counts[next(iter(counts))] += 1


GROWN: dict[str, Callable[[SimReplica], object]] = {
    "messages not yet read": lambda r: r._inbox.extend([("r0", b"")] * (bounds.INBOX_MAX + 1)),
    "bytes proposed": lambda r: setattr(r.node._proposals, "outstanding_bytes", -1),
    "durable bytes in the entry cache": lambda r: check_bounds(r, 0, recount=False),
    "bytes of requests that wait": lambda r: setattr(r.app.replica.admission, "_queued_bytes", 1 << 30),  # type: ignore[attr-defined]
    "entries in flight": lambda r: setattr(r.app.replica, "_in_flight", 5),  # type: ignore[attr-defined]
    "open of": lower_open_limit,
    "checks queued": lambda r: setattr(state_of(r).due, "_queued", 10**6),
    "order of checks": lambda r: state_of(r).due._order.extend(range(2 * GONE_BUCKETS_MAX)),
    "leases of checks": lambda r: state_of(r).due._leases.update(
        {("a", str(n)): ("", 0) for n in range(999)}
    ),
}

MISCOUNTED: dict[str, Callable[[SimReplica], object]] = {
    "bytes in the entry cache": lambda r: r.journal._cache._entries.popitem(),
    "open of": raise_counts,
    "settled": lambda r: setattr(state_of(r).transactions, "_young", -1),
    "checks queued": lambda r: setattr(state_of(r).due, "_queued", state_of(r).due._queued + 1),
    "batches remembered": lambda r: state_of(r).producers.old.update(
        {("p", n): (0, 0, ()) for n in range(20_001)}
    ),
    "decisions in the audit trail": lambda r: state_of(r).transactions.audit.extend(
        [(0, "", "", "", "")] * 1_001
    ),
}


def test_a_sound_replica_passes() -> None:
    check_bounds(busy_leader(), CACHE_BYTES, recount=True)


@pytest.mark.parametrize("what", GROWN)
def test_what_has_grown_is_seen_at_once(what: str) -> None:
    replica = busy_leader()
    with pytest.raises(Violation, match=what):
        GROWN[what](replica)
        check_bounds(replica, CACHE_BYTES, recount=False)


@pytest.mark.parametrize("what", MISCOUNTED)
def test_what_was_miscounted_is_seen_when_it_is_counted_again(what: str) -> None:
    replica = busy_leader()
    MISCOUNTED[what](replica)
    check_bounds(replica, CACHE_BYTES, recount=False)
    with pytest.raises(Violation, match=what):
        check_bounds(replica, CACHE_BYTES, recount=True)


def test_every_tick_of_a_replica_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr("tests.sim.replica.check_bounds", lambda *_, recount: seen.append(recount))
    replica = busy_leader()
    ticks = sum(r._ticks for r in replica._sim.replicas)
    assert len(seen) == ticks and abs(sum(seen) - ticks // RECOUNT_EVERY) <= 3
