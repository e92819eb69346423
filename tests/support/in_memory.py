"""What tests of the cluster in memory share: queriers, open transactions, and what is readable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import escrowmq
from escrowmq import Message, TransactionState, TxStatusQuerier
from escrowmq.testing import InMemoryCluster

COMMITTED, ROLLBACK, UNKNOWN = TransactionState.COMMITTED, TransactionState.ROLLBACK, TransactionState.UNKNOWN


class Calls(TxStatusQuerier):
    """Made of a function; remembers when it was asked about which query id."""

    def __init__(self, cluster: InMemoryCluster, function: Callable[[str], Any]) -> None:
        self.cluster, self.function = cluster, function
        self.asked: list[tuple[str, float]] = []
        self.begin = cluster.clock.time()

    def query_status(self, tx_id: str, query_id: str) -> TransactionState:
        self.asked.append((query_id, round(self.cluster.clock.time() - self.begin, 1)))
        state: TransactionState = self.function(query_id)
        return state


def leave_open(producer: escrowmq.Producer, *query_ids: str) -> None:
    for query_id in query_ids:
        with producer.transaction(query_id=query_id) as tx:
            tx.send(Message("orders", query_id.encode()))
            tx.prepare()
            tx.unknown()


def readable(cluster: InMemoryCluster) -> list[bytes]:
    with cluster.consumer("reader", ["orders"], auto_offset_reset="earliest") as consumer:
        return sorted(record.value for record in consumer.poll())
