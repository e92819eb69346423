"""Settling what a query has left: the answers to checks, and what an operator's command does.

A query that is started again settles everything by itself, so none of this is needed for that. It is for
queries that will not come back, or not soon. What has an intent is committed, wholly; what cannot win any
more, since its epoch was decided for others, is rolled back. What is not decided is left to the query,
unless the operator says that it is stopped: a driver that writes its intent meanwhile would find its epoch
half gone.
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
from escrowmq.spark_integration.sink.intents import IntentStore, app_of, epoch_of
from escrowmq.spark_integration.sink.link import SinkLink

#: Feedback waits some seconds for an answer; what takes longer is asked again.
CHECK_PATIENCE_S = 5.0


@dataclass(slots=True)
class Resolution:
    """What :func:`resolve_sink` did. ``stuck``: epochs that cannot be settled, and why. ``undecided``:
    transactions that were left alone, since the query may still commit them."""

    committed: list[int] = field(default_factory=list)
    rolled_back: int = 0
    stuck: dict[int, str] = field(default_factory=dict)
    undecided: int = 0


class SparkSinkQuerier(TxStatusQuerier):
    """Answers checks of a streaming query's transactions, from its checkpoint.

    ::

        querier = SparkSinkQuerier(checkpoint, cluster.info)
        producer = cluster.producer(app=querier.app, tx_status_querier=querier)

    Run it where the checkpoint can be read, for instance beside the query. An epoch with an intent is
    committed, all of it before any part of it is answered for; one that Spark has behind it is rolled back;
    anything else the query may still commit when it is started again.
    """

    def __init__(self, checkpoint: str, info: ClusterInfo, *, name: str = "") -> None:
        """``name``: the ``sinkName`` of a write in foreachBatch. Raises ConfigError if no query has used the
        checkpoint yet."""
        self._store = IntentStore(checkpoint, name)
        self.app = app_of(self._store.query_id())
        self._router = Router(info, name="escrowmq-sink-querier")
        self._link = SinkLink(self._router, self.app, patience_s=CHECK_PATIENCE_S, call_s=CHECK_PATIENCE_S)

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        """See :class:`TxStatusQuerier`."""
        return answer(self._store, self._link, tx_id, query_id)

    def close(self) -> None:
        """Let go of the cluster."""
        self._router.close()


def answer(store: IntentStore, link: SinkLink, tx_id: str, query_id: str) -> TransactionState:
    """What became of a chunk: ``query_id`` names its epoch. Raises what keeps it from being known."""
    epoch = epoch_of(query_id)
    if epoch is None:
        return TransactionState.UNKNOWN
    done = store.committed_epoch()  # first: Spark logs an epoch after its intent, never before
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
    """Commit what has intents, and roll back what nobody can commit any more; with ``stopped``, also what
    only the query itself still could. ``discard``: an epoch to give up instead, if nothing of it is
    committed; its intent is removed. Raises TransactionConflict if something is."""
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
    """Roll back an epoch without intent, group by group in the order in which a driver commits: of two that
    are at it at once, who comes second meets a decision at the first group and leaves the others alone."""
    running = "the query is running, and was about to commit it: stop it first"
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
        raise ConfigError(f"epoch {epoch} has no intent in {store.checkpoint!r}; there are {store.epochs()}")
    require_own(store, store.query_id(), intent)
    states = {
        tx_id: state
        for gid, ids in intent.ids().items()
        for tx_id, state in zip(ids, link.states(gid, ids), strict=True)
    }
    for tx_id, state in states.items():
        # What brokers have forgotten, all of it, was committed: see carry_out.
        if state == "COMMITTED" or set(states.values()) == {"UNKNOWN"}:
            raise TransactionConflict(tx_id, state)
    for gid, ids in intent.ids().items():  # in the order in which a driver would commit them
        for place, (code, recorded) in link.rollback(gid, ids).items():
            if code == ResultCode.TX_CONFLICT:
                raise decided_otherwise(ids[place], str(recorded))
    store.remove(epoch)


def resolve_sink(
    checkpoint: str,
    *,
    address: str = AUTO,
    namespace: str | None = None,
    discard: int | None = None,
    stopped: bool = False,
) -> Resolution:
    """Settle a streaming query that will not be started again (soon), from its checkpoint.

    What has an intent is committed, what lost against one is rolled back; both may be done beside a query
    that runs. With ``stopped`` so are epochs that the query itself might still commit: say so only if it is
    stopped, as it must be for ``discard``, which gives up an epoch of which nothing is committed.

    Raises TransactionConflict if something of that is; ConfigError if there is no query's checkpoint,
    CorruptLog, ClusterNotFound, Unavailable.
    """
    whole = Resolution()
    stores = [IntentStore(checkpoint, name) for name in IntentStore(checkpoint).names()]
    known = sorted({epoch for store in stores for epoch in store.epochs()})
    if discard is not None and discard not in known:
        raise ConfigError(f"epoch {discard} has no intent in {checkpoint!r}; there are {known}")
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
    """Settle a batch write whose driver died (``batch-...``, its app without ``spark-``): committed if its
    COMMIT was decided, else rolled back. It must not be running."""
    if not write_id.startswith("batch-"):
        raise ConfigError(f"a batch write's id begins with 'batch-', not {write_id!r}; see escrowmq txn list")
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
