"""A service that connects, forks as ``gunicorn --preload`` does, and continues in the parent.

Argument: the address of the Ray cluster.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable

import escrowmq
from escrowmq import Cluster, Message


def refused(what: Callable[[], object], error: type[Exception]) -> None:
    try:
        what()
    except error as problem:
        assert "before os.fork()" in str(problem), problem
    else:
        raise AssertionError(f"{what} went through")


def in_child(cluster: Cluster, topic: str, address: str) -> None:
    producer, consumer, admin = CLIENTS
    refused(lambda: producer.send(Message(topic, b"child")), escrowmq.Closed)
    refused(
        lambda: producer.send_message_in_transaction(Message(topic, b"c"), lambda _: None), escrowmq.Closed
    )
    refused(lambda: consumer.poll(timeout_s=0.1), escrowmq.Closed)
    refused(lambda: admin.topics(), escrowmq.Closed)
    refused(lambda: cluster.producer(app="child"), escrowmq.Closed)
    refused(lambda: escrowmq.connect(address), escrowmq.ConfigError)
    refused(lambda: escrowmq.start_local(), escrowmq.ConfigError)
    for client in (producer, consumer, admin, cluster):
        client.close()
    print("the child was told", flush=True)


CLIENTS: tuple = ()
#: A status that only a child that has ended by itself has.
LAST = 7


def forked(what: Callable[[], None]) -> int:
    """The exit status of a child that does it and then exits as a server's worker does: the interpreter's
    exit hooks run, and everything is destroyed."""
    child = os.fork()
    if child == 0:
        atexit.register(lambda: print("an exit hook ran", flush=True))
        what()
        sys.exit(LAST)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    global CLIENTS
    address, topic = sys.argv[1], f"fork-{os.getpid()}"
    with escrowmq.connect(address) as cluster:
        cluster.admin.create_topic(topic, partitions=1)
        producer = cluster.producer(app="fork")
        consumer = cluster.consumer()
        consumer.assign([(topic, 0)])
        producer.send(Message(topic, b"before")).result(30)
        CLIENTS = (producer, consumer, cluster.admin)
        assert forked(lambda: in_child(cluster, topic, address)) == LAST
        assert producer.send(Message(topic, b"after")).result(30).offset == 1
        consumer.seek_to_beginning()
        seen: list[bytes] = []
        while len(seen) < 2:
            seen += [record.value for record in consumer.poll(timeout_s=5.0)]
        assert seen == [b"before", b"after"]
    # Ray's library has threads for as long as a process lives, also when it has been left.
    assert forked(lambda: refused(lambda: escrowmq.connect(address), escrowmq.ConfigError)) == LAST
    with escrowmq.connect(address) as again:
        again.admin.delete_topic(topic)
    print("the parent goes on")


if __name__ == "__main__":
    main()
