"""A client of test_mixed_software.py: ``python mixed_client.py ADDRESS NAME``, with today's software or an
earlier one in PYTHONPATH.

Sends one transaction over both broker groups after the other, and is a member of a consumer group, until its
standard input ends. Prints ``acked N`` or ``unsure N`` for each transaction, and ``got PARTITION VALUE`` for
each message.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time

import escrowmq
from escrowmq import Cluster, EscrowMQError, Message

PAUSE_S = 0.05


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def send(cluster: Cluster, name: str, ending: threading.Event) -> None:
    """Send until the end. Every transaction has a message in each partition, and so in each group."""
    with cluster.producer(app=name) as producer:
        for number in itertools.count():
            if ending.is_set():
                return
            try:
                with producer.transaction() as tx:
                    tx.send(*(Message("t", f"{name}-{number}".encode(), partition=p) for p in (0, 1)))
            except EscrowMQError as error:
                say(f"unsure {number} {error!r}")
            else:
                say(f"acked {number}")
            time.sleep(PAUSE_S)


def read(cluster: Cluster, ending: threading.Event) -> None:
    """Be a member of the group until the end."""
    with cluster.consumer(group="mixed", topics=["t"], auto_offset_reset="earliest") as consumer:
        while not ending.is_set():
            try:
                for record in consumer.poll(timeout_s=0.3):
                    say(f"got {record.partition} {record.value.decode()}")
                consumer.commit()
            except EscrowMQError as error:
                say(f"poll {error!r}")


def main() -> None:
    """Work until the standard input ends."""
    address, name = sys.argv[1:]
    sending, reading = threading.Event(), threading.Event()
    with escrowmq.connect(address) as cluster:
        works = [
            threading.Thread(target=send, args=(cluster, name, sending)),
            threading.Thread(target=read, args=(cluster, reading)),
        ]
        for work in works:
            work.start()
        say("ready")
        sys.stdin.readline()  # first the sender ends, so that the reader gets everything
        sending.set()
        works[0].join()
        say("rested")
        sys.stdin.read()
        reading.set()
        works[1].join()


if __name__ == "__main__":
    main()
