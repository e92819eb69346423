"""Queues and tables of a replica that must stay within bounds, whatever it goes through.

Looked at after a tick, now and then. Each bound is the one that the configuration names, with room for the
one item that is let in before the bound is met; sums that are kept must be the sums of what is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from escrowmq.replication.proposals import COMMAND_BYTES_MAX
from tests.sim.world import Violation

if TYPE_CHECKING:
    from tests.sim.replica import SimReplica

#: Far above what a window per peer lets in; duplicates of the wild network and a pause of seconds included.
INBOX_MAX = 20_000
REQUEST_BYTES_MAX = 8 << 20


def check_bounds(replica: SimReplica, cache_bytes: int) -> None:
    """Raise Violation for whatever has grown beyond its bound."""
    _inside(replica, "messages not yet read", len(replica._inbox), INBOX_MAX)
    _check_node(replica)
    _check_cache(replica, cache_bytes)
    broker = getattr(replica.app, "replica", None)  # the broker's state; the plain workload has none
    if broker is not None:
        _check_broker(replica, broker)


def _inside(replica: SimReplica, what: str, value: int, bound: int) -> None:
    if not 0 <= value <= bound:
        raise Violation(f"{what} on {replica.name}: {value}, not 0 to {bound}", "unbounded")


def _check_node(replica: SimReplica) -> None:
    node, config = replica.node, replica.node.config
    proposals = node._proposals
    # One entry is taken however large.
    bound = config.outstanding_bytes_max if len(proposals._sizes) > 1 else COMMAND_BYTES_MAX
    _inside(replica, "bytes proposed", node.outstanding_bytes, bound)
    _inside(replica, "entries proposed", len(proposals._sizes), config.outstanding_entries_max)
    if sum(proposals._sizes.values()) != node.outstanding_bytes:
        raise Violation(f"{replica.name} has lost count of the bytes it proposed", "unbounded")
    _inside(replica, "acknowledgements held back", len(node._guard._held), len(node.peers))
    for peer, state in node._replicator._progress.items():
        bound = config.window_bytes + max(config.send_batch_bytes, COMMAND_BYTES_MAX)
        _inside(replica, f"bytes under way to {peer}", state.in_flight_bytes, bound)


def _check_cache(replica: SimReplica, cache_bytes: int) -> None:
    cache = replica.journal._cache
    held = {index: len(command) for index, command in cache._entries.items()}
    if sum(held.values()) != cache._bytes:
        raise Violation(f"{replica.name} has lost count of the bytes in its entry cache", "unbounded")
    # What waits for the disk is read nowhere else; the oldest of the durable ones may stay until the next.
    durable = sum(size for index, size in held.items() if index <= replica.journal.durable_index)
    unsynced = cache._bytes - durable
    _inside(replica, "durable bytes in the entry cache", durable, max(cache_bytes, cache_bytes - unsynced))


def _check_broker(replica: SimReplica, broker: object) -> None:
    admission, state = broker.admission, broker.state  # type: ignore[attr-defined]
    waiting = sum(submission.size for submission in admission._queue)
    if waiting != admission._queued_bytes:
        raise Violation(f"{replica.name} has lost count of the bytes in its queue of requests", "unbounded")
    # One request is taken however large, when none waits.
    bound = admission._queue_bytes_max if len(admission._queue) > 1 else REQUEST_BYTES_MAX
    _inside(replica, "bytes of requests that wait", waiting, bound)
    _inside(replica, "entries in flight", broker._in_flight, broker.limits.entries_in_flight)  # type: ignore[attr-defined]
    due = state.due
    _inside(replica, "checks queued", due._queued, 2 * state.transactions.open_count() + 2 * due._slack)
