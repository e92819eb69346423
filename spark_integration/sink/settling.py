"""Settles the transactions that a query has left: answers checks, and implements an operator's command.

A query that is restarted settles everything by itself and needs none of this. It is for queries that will not
come back, or not soon. An epoch with an intent is committed as a whole. Chunks that can no longer win,
because their epoch was decided for others, are rolled back. Undecided epochs are left to the query, unless
the operator says that it is stopped: otherwise a driver could write its intent at the same time and find its
epoch half rolled back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.address import AUTO
from escrowmq.cluster.connecting import connect
from escrowmq.feedback.states import TxStatusQuerier
from escrowmq.replication.errors import ConfigError, TransactionConflict, decided_otherwise
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.spark_integration.sink.batch import settle_batch
from escrowmq.spark_integration.sink.commit import EpochConflict, carry_out, require_own, require_this_batch
from escrowmq.spark_integration.sink.intents import RAY_DATA, IntentStore, app_of, epoch_of
from escrowmq.spark_integration.sink.link import SinkLink

#: The feedback process waits some seconds for an answer; if it takes longer, it asks again.
CHECK_PATIENCE_S = 5.0


@dataclass(slots=True)
class Resolution:
    """The result of :func:`resolve_sink`.

    ``committed``: epochs. ``rolled_back``: number of transactions. ``stuck``: epoch -> why it cannot be
    settled. ``undecided``: number of transactions that were left alone, since the query may still commit
    them.
    """

    committed: list[int] = field(default_factory=list)
    rolled_back: int = 0
    stuck: dict[int, str] = field(default_factory=dict)
    undecided: int = 0


class SparkSinkQuerier(TxStatusQuerier):
    """Answers checks of a streaming query's transactions from its checkpoint.

    ::

        querier = SparkSinkQuerier(checkpoint, cluster.info)
        producer = cluster.producer(app=querier.app, tx_status_querier=querier)

    Run it where the checkpoint can be read, for instance next to the query. For a chunk that an intent names,
    it commits the whole epoch and then answers COMMITTED. For other chunks of an epoch that has an intent, or
    that Spark has completed, it answers ROLLBACK. Otherwise it answers UNKNOWN, since a restarted query may
    still commit the epoch.
    """

    def __init__(self, checkpoint: str, info: ClusterInfo, *, name: str = "") -> None:
        """``name``: the ``sinkName`` of a write in foreachBatch.

        Raises ConfigError if no query has used the checkpoint yet.
        """
        self._store = IntentStore(checkpoint, name)
        self.app = app_of(self._store.query_id())
        self._router = Router(info, name="escrowmq-sink-querier")
        self._link = SinkLink(self._router, self.app, patience_s=CHECK_PATIENCE_S, call_s=CHECK_PATIENCE_S)

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        """See :class:`TxStatusQuerier`."""
        return answer(self._store, self._link, tx_id, query_id)

    def close(self) -> None:
        """Close the connections to the cluster."""
        self._router.close()


def answer(store: IntentStore, link: SinkLink, tx_id: str, query_id: str) -> TransactionState:
    """The outcome of a chunk; ``query_id`` names its epoch. Raises if the outcome cannot be determined."""
    epoch = epoch_of(query_id)
    if epoch is None:
        return TransactionState.UNKNOWN
    done = store.committed_epoch()  # read before the intent: Spark logs an epoch only after its intent exists
    intent = store.read(epoch)
    if intent is None:
        return TransactionState.ROLLBACK if epoch <= done else TransactionState.UNKNOWN
    require_this_batch(store, store.query_id(), intent)
    if not any(tx_id in ids for ids in intent.ids().values()):
        return TransactionState.ROLLBACK
    carry_out(link, intent)
    return TransactionState.COMMITTED


def resolve(
    store: IntentStore, link: SinkLink, *, discard: int | None = None, stopped: bool = False
) -> Resolution:
    """Commit the epochs that have intents, and roll back what can no longer be committed.

    ``stopped``: also roll back what only the query itself could still commit. ``discard``: an epoch to give
    up instead, whose intent is removed. Raises TransactionConflict if a part of that epoch is committed.
    """
    if discard is not None:
        _discard(store, link, discard)
    found, query_id = Resolution(), store.query_id()
    done = store.committed_epoch()
    kept: set[str] = set()
    decided: set[int] = set()
    for epoch in store.epochs():
        intent = store.read(epoch)
        if intent is None:
            continue
        decided.add(epoch)
        by_group = intent.ids()
        opened = any(set(link.open_ids(gid)) & set(ids) for gid, ids in by_group.items())
        try:
            require_this_batch(store, query_id, intent)
            carry_out(link, intent)
            found.committed += [epoch] if opened else []
        except (EpochConflict, ConfigError) as error:
            found.stuck[epoch] = str(error)
            kept.update(tx_id for ids in by_group.values() for tx_id in ids)
    undecided: dict[int, dict[int, list[str]]] = {}
    for gid in range(link.info.groups):
        left = []
        for tx_id in link.open_ids(gid):
            of = epoch_of(tx_id)
            if of is None or tx_id in kept:
                continue
            if of <= done or of in decided:
                left.append(tx_id)
            else:
                undecided.setdefault(of, {}).setdefault(gid, []).append(tx_id)
        if left:
            link.rollback(gid, left)
            found.rolled_back += len(left)
    for epoch, by_group in sorted(undecided.items()):
        if stopped:
            _give_up(store, link, epoch, by_group, found)
        else:
            found.undecided += sum(map(len, by_group.values()))
    return found


def _give_up(
    store: IntentStore, link: SinkLink, epoch: int, by_group: dict[int, list[str]], found: Resolution
) -> None:
    """Roll back an epoch without intent, group by group in the order in which a driver commits.

    So if a driver commits at the same time, the second of the two meets the other's decision at the first
    group and leaves the other groups alone.
    """
    running = "the query is running and was about to commit it; stop it first"
    if store.read(epoch) is not None:
        found.stuck[epoch] = running
        return
    for gid, ids in by_group.items():
        problems = link.rollback(gid, ids)
        if any(code == ResultCode.TX_CONFLICT for code, _ in problems.values()):
            found.stuck[epoch] = running
            return
        found.rolled_back += len(ids)


def _discard(store: IntentStore, link: SinkLink, epoch: int) -> None:
    intent = store.read(epoch)
    if intent is None:
        raise ConfigError(f"epoch {epoch} has no intent in {store.checkpoint!r}; known: {store.epochs()}")
    require_own(store, store.query_id(), intent)
    states = {
        tx_id: state
        for gid, ids in intent.ids().items()
        for tx_id, state in zip(ids, link.states(gid, ids), strict=True)
    }
    for tx_id, state in states.items():
        # If brokers have forgotten all of them, they were committed; see carry_out.
        if state == "COMMITTED" or set(states.values()) == {"UNKNOWN"}:
            raise TransactionConflict(tx_id, state)
    for gid, ids in intent.ids().items():  # in the order of a driver's commits
        for i, (code, recorded) in link.rollback(gid, ids).items():
            if code == ResultCode.TX_CONFLICT:
                raise decided_otherwise(ids[i], str(recorded))
    store.remove(epoch)


def resolve_sink(
    checkpoint: str,
    *,
    address: str = AUTO,
    namespace: str | None = None,
    discard: int | None = None,
    stopped: bool = False,
) -> Resolution:
    """Settle the transactions of a streaming query that will not be restarted soon, from its checkpoint.

    Epochs with an intent are committed, and chunks that lost against one are rolled back; both are safe while
    the query runs. ``stopped``: also roll back epochs that the query itself might still commit; use it only
    if the query is stopped. ``discard``: give up this epoch, of which nothing may be committed; the query
    must be stopped, too. Raises TransactionConflict if a part of a discarded epoch is committed, ConfigError
    if this is not a query's checkpoint, CorruptLog, ClusterNotFound, Unavailable.
    """
    whole = Resolution()
    stores = [IntentStore(checkpoint, name) for name in IntentStore(checkpoint).names()]
    known = sorted({epoch for store in stores for epoch in store.epochs()})
    if discard is not None and discard not in known:
        raise ConfigError(f"epoch {discard} has no intent in {checkpoint!r}; known: {known}")
    with _routed(address, namespace) as router:
        for store in stores:
            link = SinkLink(router, app_of(store.query_id()))
            given_up = discard if discard in store.epochs() else None
            found = resolve(store, link, discard=given_up, stopped=stopped)
            whole.committed += found.committed
            whole.undecided += found.undecided
            whole.rolled_back += found.rolled_back
            whole.stuck.update(found.stuck)
    return whole


def resolve_write(write_id: str, *, address: str = AUTO, namespace: str | None = None) -> Resolution:
    """Settle a batch write whose driver died; it must not be running.

    ``write_id``: ``batch-...``, that is its app without ``spark-``; of a write of Ray Data its whole app,
    ``ray-data-...``. The write is committed if its COMMIT was decided, else rolled back.
    """
    if not write_id.startswith(("batch-", RAY_DATA)):
        raise ConfigError(
            f"a batch write's id starts with 'batch-', or with {RAY_DATA!r} if Ray Data wrote it, unlike "
            f"{write_id!r}; 'escrowmq txn list' shows it"
        )
    with _routed(address, namespace) as router:
        committed, rolled_back = settle_batch(SinkLink(router, app_of(write_id)), write_id)
        return Resolution([0] if committed else [], rolled_back)


@contextmanager
def _routed(address: str, namespace: str | None) -> Iterator[Router]:
    with connect(address, namespace) as cluster:
        router = Router(cluster.info, name="escrowmq-sink-resolve")
        try:
            yield router
        finally:
            router.close()
