"""The smallest transaction: prepare, read nothing, commit, read both messages.

Run it: ``python examples/hello_transaction.py`` (starts an embedded cluster; takes some seconds).
"""

from __future__ import annotations

import escrowmq
from escrowmq import Cluster, Message


def run(cluster: Cluster, topic: str = "greetings") -> list[bytes]:
    """Sends two messages in one transaction and returns what a reader saw afterwards."""
    cluster.admin.create_topic(topic, partitions=1)
    with (
        cluster.producer(app="hello") as producer,
        cluster.consumer(group=f"{topic}-readers", topics=[topic], auto_offset_reset="earliest") as consumer,
    ):
        with producer.transaction() as tx:
            tx.send(Message(topic, b"hello"), Message(topic, b"world"))
            tx.prepare()
            # Both are now on the disks of a majority, and cannot be read yet.
            print("in escrow, readers see:", consumer.poll(timeout_s=1.0))
        # The end of the block committed; an exception would have rolled back.
        seen: list[bytes] = []
        while len(seen) < 2:
            for record in consumer.poll(timeout_s=10.0):
                print(f"offset {record.offset} of transaction {record.tx_id}: {record.value.decode()}")
                seen.append(record.value)
        consumer.commit()
    return seen


if __name__ == "__main__":
    with escrowmq.start_local() as cluster:
        run(cluster)
