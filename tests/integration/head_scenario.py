"""The scenarios of test_head_lost.py, in their own process: a process can connect to only one Ray cluster.

This machine simulates one machine each for Ray's head and workers; the head is lost with everything on it, by
SIGKILL. Run by hand: ``RAY_AUTH_MODE=disabled RAY_gcs_rpc_server_reconnect_timeout_s=600
python -m tests.integration.head_scenario DIRECTORY survives [SECONDS]``; ``ends`` is the scenario without
fault tolerance, with 5 instead of 600.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import ray

import escrowmq
from escrowmq import Cluster, EscrowMQError, Message, TransactionState
from escrowmq.actors.client.topology import RECONNECT_VARIABLE
from escrowmq.cluster.address import check_reachable
from escrowmq.replication.errors import ClusterNotFound
from tests.integration.nodes_scenario import command, read_all, say, seats, settled, until
from tests.support.querier import Calls
from tests.support.ray_nodes import Machine, free_port, machines_of

OUTAGE_S = 15.0
TOPICS = ("t", "u", "v", "w")  # checks of different topics belong to different feedback processes


class Traffic:
    """A producer and a consumer that always work; records errors, and the longest time without an answer."""

    def __init__(self, cluster: Cluster) -> None:
        self.sent: list[bytes] = []
        self.read: list[bytes] = []
        self.errors: list[str] = []
        self.gap = {"write": 0.0, "read": 0.0}
        self.going = threading.Event()
        self.going.set()
        # Every local transaction has been committed.
        querier = Calls(lambda tx_id, query_id: TransactionState.COMMITTED)
        self.producer = cluster.producer(app="traffic", tx_status_querier=querier)
        self._consumer = cluster.consumer(auto_offset_reset="earliest")
        self._consumer.assign([("t", 0)])
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def _write(self) -> None:
        last = time.monotonic()
        while self.going.is_set():
            value = b"%d" % len(self.sent)
            try:
                with self.producer.transaction() as tx:
                    tx.send(Message("t", value))
                self.sent.append(value)
            except EscrowMQError as error:
                self.errors.append(f"write: {error!r}")
            now = time.monotonic()
            self.gap["write"], last = max(self.gap["write"], now - last), now
            time.sleep(0.05)

    def _read(self) -> None:
        last = time.monotonic()
        while self.going.is_set():
            try:
                found = [record.value for record in self._consumer.poll(timeout_s=0.2)]
            except EscrowMQError as error:
                self.errors.append(f"read: {error!r}")
                continue
            self.read += found
            now = time.monotonic()
            if found:
                self.gap["read"], last = max(self.gap["read"], now - last), now

    def leave_open(self) -> None:
        """Prepare transactions that only a check decides."""
        for topic in TOPICS:
            with self.producer.transaction() as tx:
                tx.send(Message(topic, b"unknown"))
                tx.prepare()
                tx.unknown()

    def end(self) -> None:
        self.going.clear()
        for thread in self._threads:
            thread.join()


class HeadStory:
    """The simulated machines, and the cluster on them."""

    def __init__(self, directory: Path, names: tuple[str, ...], changes: dict[str, str | None]) -> None:
        self.directory = directory
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.machines = {m.name: m for m in machines_of(directory, names, changes, port)}
        self.head = self.machines[names[0]]

    def up(self, *more: str) -> str:
        """Start Ray on all machines, and the cluster; returns the notes of ``escrowmq up``."""
        self.start_head()
        for machine in self.machines.values():
            if machine is not self.head:
                machine.start()
                machine.wait_started()
        config = self.directory / "escrowmq.yaml"
        config.write_text("supervisor: {replace_after_s: 3}\n")
        data = ("--data-dir", str(self.directory / "data"), "--config", str(config))
        count = str(len(self.machines))
        return str(command("up", "--address", self.address, *data, "--nodes-min", count, *more))

    def start_head(self) -> None:
        # As `ray stop` does before a start: the processes of the other machines are visible here, so Ray
        # would assume that this node is already running.
        (self.directory / "ray" / "ray_current_cluster").unlink(missing_ok=True)
        self.head.start()
        deadline = time.monotonic() + 60
        while True:
            assert self.head.runs, self.head.log.read_text()
            try:
                check_reachable(self.address)
                return
            except ClusterNotFound:
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def connect_beside(self, machine: Machine) -> Cluster:
        """Connect through a machine that is not the head."""
        ray.init(
            address=self.address,
            namespace="escrowmq",
            _node_ip_address=machine.ip,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        return escrowmq.connect()

    def end(self) -> None:
        for machine in self.machines.values():
            machine.lose()


def survives(directory: Path, outage_s: float) -> None:
    """With fault tolerance: traffic continues, and the cluster is healthy again when the head is back."""
    story = HeadStory(directory, ("n0", "n1", "n2"), {})
    try:
        said = story.up()
        assert "fault tolerant" not in said, said
        cluster = story.connect_beside(story.machines["n1"])
        for topic in TOPICS:
            cluster.admin.create_topic(topic)
        traffic = Traffic(cluster)
        until("traffic", lambda: len(traffic.read) > 20, cluster)
        say(f"up, head at {story.address}")
        story.head.lose()
        began = time.monotonic()
        say("the head is lost, with its replica and the supervisor")
        works_without_a_head(story, traffic)
        time.sleep(max(0.0, outage_s - (time.monotonic() - began)))
        assert all(m.raylet_is_alive for m in story.machines.values() if m is not story.head)
        story.start_head()
        say(f"the head is started again after {time.monotonic() - began:.0f} s")
        until("everything is well", lambda: settled(cluster), cluster)
        say("the supervisor is back, and the head's replica with it")
        until("checks", lambda: not list(cluster.admin.list_transactions()), cluster)
        say("the transactions that were left open are decided")
        another_node_is_replaced(story, cluster)
        traffic.end()
        assert not traffic.errors, traffic.errors[:5]
        check_all_there(cluster, traffic)
        say(f"longest gaps: {traffic.gap['write']:.2f} s writing, {traffic.gap['read']:.2f} s reading")
        status = command("status", "--address", story.address, "--format", "json")
        assert status["supervisor"]["head_in_words"].startswith("fault tolerant (rocksdb): "), status
        print("nothing was noticed, and everything is well", flush=True)
    finally:
        story.end()


def works_without_a_head(story: HeadStory, traffic: Traffic) -> None:
    """While the head is away: transactions are left to checks, this process connects again, and a new process
    gets an error that explains why it cannot."""
    traffic.leave_open()
    began = time.monotonic()
    again = escrowmq.connect()
    with again.producer(app="newcomer") as producer, producer.transaction() as tx:
        tx.send(Message("u", b"newcomer"))
    say(f"connected through a broker, and sent, in {time.monotonic() - began:.1f} s")
    again.close()
    done = escrowmq_command("status", "--address", story.address)
    assert done.returncode == 3, done
    assert "its head node was lost" in done.stderr and "docs/operations.md" in done.stderr, done.stderr
    say(f"a program that starts now is told: {done.stderr.strip()}")


def escrowmq_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from escrowmq.cluster.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def another_node_is_replaced(story: HeadStory, cluster: Cluster) -> None:
    """The supervisor works again: a worker is lost, and its replica is rebuilt on a new worker."""
    replica = next(r for r, seat in seats(cluster).items() if seat["node"] == "n2")
    old = story.machines["n2"]
    old.lose()
    fresh = Machine("n3", "127.0.0.4", old.arguments, old.environment, story.directory / "n3.log")
    story.machines["n3"] = fresh
    fresh.start()
    fresh.wait_started()
    until("the replica moves", lambda: seats(cluster)[replica]["node"] == "n3", cluster)
    until("everything is well", lambda: settled(cluster), cluster)
    say("a replica of a lost worker was rebuilt elsewhere")


def check_all_there(cluster: Cluster, traffic: Traffic) -> None:
    found = [value for value in read_all(cluster, len(traffic.sent)) if value != b"unknown"]
    assert found == traffic.sent, (len(found), len(traffic.sent))


def ends(directory: Path, _: float) -> None:
    """Without fault tolerance: all of Ray ends, and the connected program has been told why."""
    off: dict[str, str | None] = {"RAY_gcs_storage": None, "RAY_gcs_storage_path": None}
    wait = {RECONNECT_VARIABLE: os.environ[RECONNECT_VARIABLE]}
    story = HeadStory(directory, ("z-head", "a-worker"), {**off, **wait})
    client = None
    try:
        said = story.up("--replicas", "1")
        assert "head: not fault tolerant: all of Ray ends 5 s after losing its head" in said, said
        worker = story.machines["a-worker"]
        client = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.head_client", story.address, worker.ip],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        assert client.stdout.readline() == "sending\n"
        began = time.monotonic()
        story.head.lose()
        say("the head is lost")
        out, err = client.communicate(timeout=60)
        say(f"the program ended with {client.returncode} after {time.monotonic() - began:.1f} s: {out}{err}")
        check_what_the_program_was_told(story, err)
        while worker.raylet_is_alive:
            assert time.monotonic() < began + 60, "the worker's raylet lives on"
            time.sleep(0.2)
        done = escrowmq_command("status", "--address", story.address)
        assert done.returncode == 3 and "its head node was lost" in done.stderr, done.stderr
        print("everybody was told what happened", flush=True)
    finally:
        if client is not None and client.poll() is None:
            client.kill()
        story.end()


def check_what_the_program_was_told(story: HeadStory, err: str) -> None:
    port = story.address.rpartition(":")[2]
    assert f":{port} has been unreachable for" in err, err
    assert "and Ray ends this process" in err, err
    assert "restart this program" in err and "docs/operations.md" in err, err


if __name__ == "__main__":
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else OUTAGE_S
    code = 0
    try:
        {"survives": survives, "ends": ends}[sys.argv[2]](Path(sys.argv[1]), seconds)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a Ray that has lost its head cannot be left: trying hangs until Ray ends the process
