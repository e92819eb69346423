"""A program that sends until its Ray cluster ends: ``python -m tests.integration.head_client ADDRESS IP``."""

from __future__ import annotations

import logging
import sys
import time

import ray

import escrowmq
from escrowmq import Message


def main(address: str, ip: str) -> None:
    """Prints "sending" once the first message is acknowledged."""
    ray.init(
        address=address,
        namespace="escrowmq",
        _node_ip_address=ip,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    cluster = escrowmq.connect()
    cluster.admin.create_topic("t")
    producer = cluster.producer(app="program")
    producer.send(Message("t", b"first")).result()
    print("sending", flush=True)
    while True:
        producer.send(Message("t", b"more")).result()
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
