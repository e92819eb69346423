"""A share consumer in its own process, killed by a message: ``python -m tests.integration.share_member``.

Arguments: Ray address, namespace, group, topic. Takes one message at a time: what lies in the buffer of a
consumer that dies has its leases ended, too. ``kills`` ends the process; the values of others are printed.
"""

from __future__ import annotations

import os
import sys

import escrowmq


def main() -> None:
    address, namespace, group, topic = sys.argv[1:]
    options = {"auto_offset_reset": "earliest", "lease_s": 1, "prefetch_records": 0}
    with (
        escrowmq.connect(address, namespace=namespace) as cluster,
        cluster.share_consumer(group, [topic], **options) as queue,
    ):
        for record in queue:
            if record.value == b"kills":
                os._exit(9)
            print(record.value.decode(), flush=True)
            queue.ack(record)
            queue.flush()


if __name__ == "__main__":
    main()
