"""Kafka: three brokers with KRaft, each replica in sync at two, with and without fsync for every message."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import ClassVar

from benchmarks.peers.packages import NotAvailable
from benchmarks.peers.processes import Processes, free_ports
from benchmarks.peers.program import LoadProgram
from benchmarks.peers.rows import LONE_PLAIN, LONE_TX, PLAIN_1K, PLAIN_256, READING, TX_64, TX_OF_100
from benchmarks.peers.system import HEAP, Peer

NODES = 3
SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # Of 50 by default. Fewer are made sooner, and at this load they are not the limit.
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.num.partitions": "8",
    # A new group need not wait for more members.
    "group.initial.rebalance.delay.ms": "0",
}
FSYNC = {"log.flush.interval.messages": "1"}


class Kafka(Peer):
    """Acknowledges from the page cache of the replicas in sync, as it does by default."""

    name = "kafka"
    product = "kafka"
    title = "Kafka, page cache"
    durable = "page cache of at least two of three"
    settings = (
        "three brokers (KRaft, broker and controller in one), replication 3, `acks=all`, "
        "`min.insync.replicas=2`, heap 1 GB each; librdkafka with its defaults, "
        "`linger.ms=0` for lone messages and transactions, `fetch.queue.backoff.ms=10` for the consumer, "
        "which sleeps for a second at a time otherwise; a transactional producer for each transaction in "
        "flight"
    )
    rows = (PLAIN_256, PLAIN_1K, READING, LONE_PLAIN, LONE_TX, TX_64, TX_OF_100)
    extra: ClassVar[dict[str, str]] = {}

    def install(self) -> None:
        self.packages.pip()
        self.packages.class_path()

    def serve(self, folder: Path, processes: Processes) -> LoadProgram:
        ports = free_ports(2 * NODES)
        clients, controllers = ports[:NODES], ports[NODES:]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, start=1))
        files = []
        for n in range(1, NODES + 1):
            listener = f"PLAINTEXT://127.0.0.1:{clients[n - 1]}"
            own = {
                "node.id": str(n),
                "controller.quorum.voters": voters,
                "listeners": f"{listener},CONTROLLER://127.0.0.1:{controllers[n - 1]}",
                "advertised.listeners": listener,
                "log.dirs": str(folder / f"node-{n}"),
            }
            files.append(folder / f"node-{n}.properties")
            lines = {**SETTINGS, **self.extra, **own}
            files[-1].write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        java = [self.packages.tool("java"), "-cp", self.packages.class_path()]
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        for file in files:
            command = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if done.returncode != 0:
                raise NotAvailable(f"the storage was not formatted: {(done.stdout + done.stderr)[-400:]}")
        for n, file in enumerate(files, start=1):
            processes.start(f"broker-{n}", [java[0], *HEAP, *java[1:], "kafka.Kafka", file])
        for port in clients:
            processes.wait_for_port(port)
        return self.python_client(processes, "kafka_load", ",".join(f"127.0.0.1:{port}" for port in clients))


class KafkaFsync(Kafka):
    """The same, with every message synced before the answer."""

    name = "kafka-fsync"
    title = "Kafka, fsync"
    durable = "fsync on at least two of three"
    settings = "as above, with `log.flush.interval.messages=1`"
    extra: ClassVar[dict[str, str]] = FSYNC
