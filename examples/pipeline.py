"""Orders become invoices, each exactly one, although the processes that do it are killed in the middle.

A member of the group polls orders, and sends the invoices and its group's offsets in one transaction. So an
order whose invoice counts is never polled again, and one whose invoice does not count always is: no database,
no list of what was done. Here a process kills itself between prepare and commit, others are killed from
outside, and new ones go on.

Run it: ``python examples/pipeline.py``, or with ``--orders 100000 --kills 20`` to see it last for longer.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import escrowmq
from escrowmq import (
    Cluster,
    ConsumerConfig,
    Message,
    OffsetsMoved,
    OffsetsPending,
    OutcomeUnknown,
    StaleMember,
    TransactionConflict,
    Unavailable,
)

#: After these a member just polls again: it gets what is left to do.
NOT_COMMITTED = (
    OffsetsMoved,
    OffsetsPending,
    StaleMember,
    TransactionConflict,
    Unavailable,
    OutcomeUnknown,
)
#: Members that die are missed after two seconds, and their transactions are rolled back after three.
QUICK, TIMEOUT_S = ConsumerConfig(session_timeout_s=2.0, heartbeat_interval_s=0.5), 3.0
BATCH, MEMBERS, PARTITIONS = 100, 2, 4


def group_of(orders: str) -> str:
    """The consumer group's name."""
    return f"{orders}-invoicing"


def serve(cluster: Cluster, orders: str, invoices: str, dies_in: int) -> None:
    """Transforms until it is killed: by itself between prepare and commit of transaction number ``dies_in``
    (-1: never)."""
    with (
        cluster.producer(app=group_of(orders)) as producer,
        cluster.consumer(group_of(orders), [orders], auto_offset_reset="earliest", config=QUICK) as consumer,
    ):
        done = 0
        while True:
            records = consumer.poll(max_records=BATCH, timeout_s=1.0)
            if not records:
                continue
            done += 1
            try:
                with producer.transaction(local=False, transaction_timeout_s=TIMEOUT_S) as tx:
                    tx.send_offsets(consumer)
                    for record in records:
                        tx.send(Message(invoices, b"invoice for " + record.value, key=record.key))
                    if done == dies_in:
                        tx.prepare()
                        os.kill(os.getpid(), signal.SIGKILL)
            except NOT_COMMITTED as error:
                print(f"not committed, polled again: {type(error).__name__}", flush=True)


def start(cluster: Cluster, orders: str, invoices: str, dies_in: int = -1) -> subprocess.Popen[bytes]:
    """A process that serves."""
    arguments = [cluster.address, cluster.info.namespace, orders, invoices, str(dies_in)]
    return subprocess.Popen([sys.executable, __file__, "--serve", *arguments])


def done_of(cluster: Cluster, orders: str) -> int:
    """How many orders the group has behind it."""
    with cluster.consumer(group_of(orders)) as consumer:
        return sum(consumer.committed(orders, number) or 0 for number in range(PARTITIONS))


def transform(cluster: Cluster, orders: str, invoices: str, count: int, kills: int) -> None:
    """Lets members work until all orders are done, and kills some of them."""
    killed = min(kills, 1)
    if killed:
        start(cluster, orders, invoices, dies_in=1).wait()
        print("a member was killed between prepare and commit", flush=True)
    members = [start(cluster, orders, invoices) for _ in range(MEMBERS)]
    try:
        while (done := done_of(cluster, orders)) < count:
            if killed < kills and done >= count * killed / kills:
                random.choice(members).kill()
                killed += 1
            for number, member in enumerate(members):
                if member.poll() is not None:
                    print(f"a member was killed, {done} of {count} orders are done", flush=True)
                    members[number] = start(cluster, orders, invoices)
            time.sleep(0.2)
    finally:
        for member in members:
            member.kill()
            member.wait()


def read(cluster: Cluster, invoices: str, count: int) -> Counter[bytes]:
    """How often each invoice is there."""
    found: Counter[bytes] = Counter()
    with cluster.consumer(f"{invoices}-audit", [invoices], auto_offset_reset="earliest") as consumer:
        some = True
        while found.total() < count or some:  # one too many would come last
            records = consumer.poll(max_records=10_000, timeout_s=2.0)
            found.update(record.value for record in records)
            some = bool(records)
    return found


def run(cluster: Cluster, orders: str = "orders", count: int = 400, kills: int = 2) -> Counter[bytes]:
    """Returns how many invoices there are for each order."""
    invoices = f"{orders}-invoices"
    for topic in (orders, invoices):
        cluster.admin.create_topic(topic, partitions=PARTITIONS)
    with cluster.producer(app=f"{orders}-shop") as producer:
        producer.send_many(orders, (b"order-%d" % number for number in range(count))).result()
    began = time.monotonic()
    transform(cluster, orders, invoices, count, kills)
    took_s = time.monotonic() - began
    found = read(cluster, invoices, count)
    twice = sum(times > 1 for times in found.values())
    print(
        f"{count} orders, {kills} kills, {took_s:.0f} s: {len(found)} have an invoice, {twice} more than one"
    )
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        address, namespace, source, target, dies_in = sys.argv[2:]
        with escrowmq.connect(address, namespace) as served:
            serve(served, source, target, int(dies_in))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("--orders", type=int, default=400)
        parser.add_argument("--kills", type=int, default=2)
        chosen = parser.parse_args()
        with escrowmq.start_local() as local:
            times = run(local, count=chosen.orders, kills=chosen.kills)
        if len(times) != chosen.orders or set(times.values()) != {1}:
            sys.exit("an order without an invoice, or with two")
