"""Checks that a replica's queues and tables stay within their bounds, whatever happens.

They are checked after every tick (tables.py checks all containers, less often). Each bound is the configured
one, with room for the one item that is accepted before the bound is reached. The checks use sums that the
code under test maintains; now and then these are recounted and must be correct.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.replication.raft.node import COMMAND_BYTES_MAX
from escrowmq.replication.state.transactions import APP_AS_IDS, AUDIT_KEPT
from tests.sim.checks.tables import SETTLED_AT_ONCE
from tests.sim.environment.world import Violation
from tests.support.queued_checks import queued_checks

if TYPE_CHECKING:
    from escrowmq.replication.state.dedup import TwoGenerations
    from tests.sim.group.replica import SimReplica

RECOUNT_EVERY = 32  # ticks: counting takes ten times as long as comparing
#: With more apps than this, the open transactions of each are checked only with a recount.
APPS_AT_ONCE = 50
#: Far above what a window per peer allows, including duplicates by the network and a pause of seconds.
INBOX_MAX = 20_000
REQUEST_BYTES_MAX = 8 << 20
#: Removed buckets of checks that may remain in the order of buckets: twice the number at which the order is
#: rebuilt, since more may be removed between two runs of the timer.
GONE_BUCKETS_MAX = 2_000


def check_bounds(replica: SimReplica, cache_bytes: int, *, recount: bool, has_applied: bool = True) -> None:
    """Raise Violation for anything beyond its bound; with ``recount``, also for wrong sums.

    ``has_applied``: whether an entry was applied since the last check. Nothing else changes what is open.
    """
    broker = getattr(replica.app, "replica", None)  # the broker's state; the plain workload has none
    if recount:
        _recount_node(replica)
        if broker is not None:
            _recount_broker(replica, broker)
    _check_node(replica, cache_bytes)
    if broker is not None:
        _check_broker(replica, broker, recount)
        if recount or (has_applied and len(broker.state.transactions.apps) <= APPS_AT_ONCE):
            _check_open(replica, broker)


def _inside(replica: SimReplica, what: str, value: int, bound: int) -> None:
    if not 0 <= value <= bound:
        raise Violation(f"{what} on {replica.name}: {value}, not 0 to {bound}", "unbounded")


def _same(replica: SimReplica, what: str, kept: int, counted: int) -> None:
    if kept != counted:
        raise Violation(f"{replica.name} has lost count of {what}: {kept}, not {counted}", "unbounded")


# ------------------------------------------------------------------ log and messages


def _check_node(replica: SimReplica, cache_bytes: int) -> None:
    node = replica.node
    config, proposals = node.config, node.proposals
    if replica.links.inbox:
        _inside(replica, "messages not yet read", len(replica.links.inbox), INBOX_MAX)
    entries = len(proposals.sizes)
    if entries or proposals.outstanding_bytes:
        # A single entry is accepted whatever its size.
        bound = config.outstanding_bytes_max if entries > 1 else COMMAND_BYTES_MAX
        _inside(replica, "bytes proposed", proposals.outstanding_bytes, bound)
        _inside(replica, "entries proposed", entries, config.outstanding_entries_max)
    if node.guard.held:
        _inside(replica, "acknowledgements held back", len(node.guard.held), len(node.known_peers.known))
    if node.replicator.progress:
        bound = config.window_bytes + max(config.send_batch_bytes, COMMAND_BYTES_MAX)
        for peer, state in node.replicator.progress.items():
            if not 0 <= state.in_flight_bytes <= bound:  # here and below: texts are made only when needed
                _inside(replica, f"bytes under way to {peer}", state.in_flight_bytes, bound)
    if not 0 <= replica.journal.cache.held_bytes <= cache_bytes:
        _check_cache(replica, cache_bytes)


def _check_cache(replica: SimReplica, cache_bytes: int) -> None:
    """Entries waiting for the disk must stay cached; the oldest durable ones may stay until the next put."""
    cache, durable = replica.journal.cache, replica.journal.durable_index
    held = sum(len(command) for index, command in cache.entries.items() if index <= durable)
    unsynced = cache.held_bytes - held
    _inside(replica, "durable bytes in the entry cache", held, max(cache_bytes, cache_bytes - unsynced))


def _recount_node(replica: SimReplica) -> None:
    proposals, cache = replica.node.proposals, replica.journal.cache
    _same(replica, "bytes proposed", proposals.outstanding_bytes, sum(proposals.sizes.values()))
    _same(replica, "bytes in the entry cache", cache.held_bytes, sum(map(len, cache.entries.values())))


# ------------------------------------------------------------------ requests and transactions


def _check_broker(replica: SimReplica, broker: Any, recount: bool) -> None:
    admission, state, limits = broker.admission, broker.state, broker.limits
    queue = admission.queue
    if queue or admission.queued_bytes:
        # A single request is accepted whatever its size, if none waits.
        bound = admission.queue_bytes_max if admission.waiting() > 1 else REQUEST_BYTES_MAX
        _inside(replica, "bytes of requests that wait", admission.queued_bytes, bound)
    if broker.in_flight:
        _inside(replica, "entries in flight", broker.in_flight, limits.entries_in_flight)
    if len(state.due.news) != len(state.due.queues):
        _same(replica, "pairs with due checks", len(state.due.news), len(state.due.queues))
    if recount or len(state.transactions.apps) <= APPS_AT_ONCE:
        _check_due(replica, state)


def _check_open(replica: SimReplica, broker: Any) -> None:
    """Check each app's open transactions."""
    most = broker.limits.open_transactions_max
    for app, table in broker.state.transactions.apps.items():
        for topic, count in table.open_by_topic.items():
            if not 0 <= count <= most:
                _inside(replica, f"open of {app}, {topic}", count, most)


def _check_due(replica: SimReplica, state: Any) -> None:
    """Check the queue of checks, which changes whenever time passes."""
    due = state.due
    if len(due.order) > len(due.buckets):
        _inside(replica, "order of checks", len(due.order), 2 * len(due.buckets) + GONE_BUCKETS_MAX)
    if due.queued > due.slack or due.leases:
        opened = sum([len(table.open) for table in state.transactions.apps.values()])
        _inside(replica, "checks queued", due.queued, 2 * opened + 2 * due.slack)
        _inside(replica, "leases of checks", len(due.leases), opened)


def _recount_broker(replica: SimReplica, broker: Any) -> None:
    """Recount sums, and check tables that change too slowly to check them every time."""
    admission, state = broker.admission, broker.state
    waiting = sum(submission.size for submission in (*admission.queue, *admission.hold.held))
    _same(replica, "bytes of requests that wait", admission.queued_bytes, waiting)
    transactions, due = state.transactions, state.due
    settled = young = 0
    for app, table in transactions.apps.items():
        _same(replica, f"open of {app}", sum(table.open_by_topic.values()), len(table.open))
        settled += len(table.settled)
        young += len(table.settled.young) + (APP_AS_IDS if table.settled.young else 0)
    _same(replica, "settled", transactions.young, young)
    _inside(
        replica, "settled and remembered", settled, 2 * (state.settings.settled_generation + SETTLED_AT_ONCE)
    )
    _check_generations(replica, "batches remembered", state.producers, state.settings.producers_generation)
    _inside(replica, "decisions in the audit trail", len(transactions.audit), AUDIT_KEPT)
    _same(replica, "checks queued", due.queued, queued_checks(due))


def _check_generations(replica: SimReplica, what: str, table: TwoGenerations[Any, Any], most: int) -> None:
    _inside(replica, f"{what} (young)", len(table.young), most)
    _inside(replica, f"{what} (old)", len(table.old), most)
