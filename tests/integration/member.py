"""A consumer group's member in its own process, which a test kills: ``python -m tests.integration.member``.

Arguments: Ray address, namespace, group, topic. Prints each record's value; never commits.
"""

from __future__ import annotations

import sys

import escrowmq


def main() -> None:
    address, namespace, group, topic = sys.argv[1:]
    with (
        escrowmq.connect(address, namespace=namespace) as cluster,
        cluster.consumer(
            group, [topic], auto_offset_reset="earliest", session_timeout_s=1.0, heartbeat_interval_s=0.2
        ) as consumer,
    ):
        for record in consumer:
            print(record.value.decode(), flush=True)


if __name__ == "__main__":
    main()
