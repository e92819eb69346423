"""The scenario of test_mixed_software.py, in its own process: a process can connect to only one Ray cluster.

Three Ray nodes on this machine run today's software, and a cluster of two broker groups. Node after node is
upgraded to a version with one format level more, while clients of both versions work; in every mixture
replicas of both versions lead each group. Ray's head, with the supervisor, comes last: the whole cluster is
started again. Run by hand: ``RAY_AUTH_MODE=disabled python -m tests.integration.mixed_scenario DIRECTORY``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster as RayCluster

import escrowmq
from escrowmq import Cluster, EscrowMQError
from escrowmq.cluster.ray_use import system_config
from escrowmq.cluster.settings import RaySettings
from escrowmq.replication.state.machine import LEVEL_MAX
from tests.support.next_software import LEVEL, made

TODAY = Path(__file__).parents[2]
NODES = ("n0", "n1", "n2")
GROUPS = 2
PATIENCE_S = 90.0
#: Transactions that a client must commit under each leader.
WORK = 5
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def until(what: str, condition: Callable[[], Any]) -> Any:
    """Wait until ``condition()`` returns something true, and return that."""
    deadline = time.monotonic() + PATIENCE_S
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = condition()
        except EscrowMQError as error:
            last = error
        if last and not isinstance(last, Exception):
            return last
        time.sleep(0.1)
    raise AssertionError(f"not within {PATIENCE_S} s: {what}; last: {last!r}")


class Client:
    """A client process with one of the two versions."""

    def __init__(self, name: str, software: Path, address: str, directory: Path) -> None:
        self.name = name
        self.said: list[str] = []
        script = Path(__file__).with_name("mixed_client.py")
        with (directory / f"{name}.log").open("w") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", str(script), address, name],
                cwd=directory,
                env=environment(software),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()
        until(f"{name} is ready", lambda: "ready" in self.said)

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.said.append(line.strip())

    def numbers(self, word: str) -> list[int]:
        """Of its transactions that ended so."""
        return [int(line.split()[1]) for line in list(self.said) if line.startswith(word + " ")]

    def got(self) -> set[tuple[int, str]]:
        """(partition, value) of everything that it got as a member of the group."""
        found = [line.split() for line in list(self.said) if line.startswith("got ")]
        return {(int(partition), value) for _, partition, value in found}

    def works(self) -> None:
        """Wait until it has committed more transactions."""
        before = len(self.numbers("acked"))
        until(f"{self.name} commits", lambda: len(self.numbers("acked")) >= before + WORK)

    def rest(self) -> None:
        """Let it send nothing more."""
        assert self._popen.stdin is not None
        self._popen.stdin.write("rest\n")
        self._popen.stdin.flush()
        until(f"{self.name} rests", lambda: "rested" in self.said)

    def end(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        assert self._popen.wait(60.0) == 0, self.said[-5:]

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()


def environment(software: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(software)}


class MixedStory:
    """The nodes and the cluster on them."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.data_dir = directory, directory / "data"
        self.next = made(directory / "next")
        self.clients: list[Client] = []
        self.machines = self._head(TODAY)
        self.nodes = {name: self._node(name, TODAY) for name in NODES[1:]}
        self.software = dict.fromkeys(NODES, TODAY)

    def _head(self, software: Path) -> RayCluster:
        return RayCluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "node_name": NODES[0],
                "include_dashboard": False,
                "temp_dir": str(self.directory / "ray"),
                "env_vars": environment(software),
                "_system_config": system_config(RaySettings()),
            },
        )

    def _node(self, name: str, software: Path) -> Any:
        return self.machines.add_node(num_cpus=1, node_name=name, env_vars=environment(software))

    def escrowmq(self, software: Path, *arguments: str) -> Any:
        """``escrowmq ... --format json`` of one version; returns its result."""
        code = "from escrowmq.cluster.cli import main; main()"
        command = [sys.executable, "-c", code, *arguments, "--address", self.machines.address]
        done = subprocess.run(
            command,
            cwd=self.directory,  # Ray's workers import from there
            env=environment(software),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"escrowmq {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stderr

    def up(self, software: Path) -> None:
        shape = ("--groups", str(GROUPS), "--replicas", "3", "--nodes-min", "3")
        data = ("--data-dir", str(self.data_dir), "--format", "json")
        self.escrowmq(software, "up", *shape, *data)

    # -------------------------------------------------------------- looking
    def seats(self) -> dict[tuple[int, int], dict[str, Any]]:
        """(group, replica) -> its seat, as the supervisor reports it."""
        return {(one["group"], one["replica"]): one for one in self.cluster.health()["replicas"]}

    def node_of_leader(self, gid: int) -> str | None:
        leader = self.cluster.status().groups[gid].leader
        return None if leader is None else str(self.seats()[gid, leader]["node"])

    def healthy(self) -> bool:
        status = self.cluster.status()
        return bool(status.healthy and self.cluster.health()["ready"])

    def levels(self) -> set[int]:
        return {group.level for group in self.cluster.status().groups}

    # -------------------------------------------------------------- the story
    def comes_up(self) -> None:
        self.up(TODAY)
        self.cluster: Cluster = escrowmq.connect(self.machines.address)
        until("the cluster is healthy", self.healthy)
        assert sorted({seat["node"] for seat in self.seats().values()}) == list(NODES)
        until("the groups have today's level", lambda: self.levels() == {LEVEL_MAX})
        self.cluster.admin.create_topic("t", GROUPS)
        address, directory = self.machines.address, self.directory
        self.clients += [
            Client("today", TODAY, address, directory),
            Client("next", self.next, address, directory),
        ]
        self.all_work()
        say("two groups of today's version, and clients of both")

    def all_work(self) -> None:
        for client in self.clients:
            client.works()

    def upgrade(self, name: str) -> None:
        """Stop a node, and start it with the next software and its data."""
        self.machines.remove_node(self.nodes.pop(name), allow_graceful=False)
        self.all_work()
        self.nodes[name] = self._node(name, self.next)
        self.software[name] = self.next
        until(f"{name} is back", self.healthy)
        self.all_work()
        assert self.levels() == {LEVEL_MAX}, "a replica of today's version could not follow"
        say(f"{name} is upgraded")

    def everybody_leads(self) -> None:
        """Kill leaders until a replica of each version has led each group, with all others following it."""
        for gid in range(GROUPS):
            for software in (TODAY, self.next):
                self.leads(gid, software)
                self.all_work()
        until("all is well again", self.healthy)
        upgraded = [name for name in NODES if self.software[name] == self.next]
        say(f"replicas of both versions have led each group; of the next are {', '.join(upgraded)}")

    def leads(self, gid: int, software: Path) -> None:
        """Kill leaders until a replica of that version leads."""
        for _ in range(30):
            until("all replicas are well", self.healthy)
            where = until(f"group {gid} has a leader", lambda: self.node_of_leader(gid))
            if self.software[where] == software:
                return
            rid = self.cluster.status().groups[gid].leader
            pid = None if rid is None else self.seats()[gid, rid]["pid"]
            if pid is not None and psutil.pid_exists(pid):  # the supervisor may not know the newest one yet
                psutil.Process(pid).kill()
                time.sleep(1.0)
        raise AssertionError(f"no replica of group {gid} with {software} becomes the leader")

    def finish(self) -> None:
        """The clients end; what was acknowledged is there once, whole and in order, and members got it."""
        for client in self.clients:
            client.rest()
        sure = {f"{c.name}-{n}" for c in self.clients for n in c.numbers("acked")}
        unsure = {f"{c.name}-{n}" for c in self.clients for n in c.numbers("unsure")}
        until("no transaction is open", lambda: not self.cluster.admin.list_transactions() or None)
        content = self.read_all()
        assert content[0].keys() == content[1].keys(), "a transaction is readable in one group only"
        assert sure <= content[0].keys() <= sure | unsure
        for partition, counted in content.items():
            assert set(counted.values()) == {1}, "a message is there twice"
            for client in self.clients:
                numbers = [int(v.partition("-")[2]) for v in counted if v.startswith(client.name)]
                assert numbers == sorted(numbers), f"{client.name} is out of order in {partition}"
        wanted = {(partition, value) for partition, counted in content.items() for value in counted}
        until("the members got everything", lambda: wanted <= set.union(*(c.got() for c in self.clients)))
        for client in self.clients:
            client.end()
        say(
            f"{len(sure)} transactions were acknowledged, {len(unsure)} are unsure, each is there once or not"
        )

    def read_all(self) -> dict[int, Counter[str]]:
        """partition -> how often it has each value, in order."""
        found: dict[int, Counter[str]] = {number: Counter() for number in range(GROUPS)}
        ends = {one.partition: one.end for one in self.cluster.admin.describe_topic("t").partitions}
        with self.cluster.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", number) for number in found])
            deadline = time.monotonic() + PATIENCE_S
            while any(found[p].total() < end for p, end in ends.items()) and time.monotonic() < deadline:
                for record in consumer.poll(timeout_s=0.5):
                    found[record.partition][record.value.decode()] += 1
        assert {number: counted.total() for number, counted in found.items()} == ends
        return found

    def upgrades_the_head(self) -> None:
        """The supervisor's node comes last. Here it is Ray's head, so everything is started again."""
        content = self.read_all()
        self.cluster.close()
        self.escrowmq(self.next, "down")
        ray.shutdown()
        self.machines.shutdown()
        self.machines = self._head(self.next)
        self.nodes = {name: self._node(name, self.next) for name in NODES[1:]}
        self.software = dict.fromkeys(NODES, self.next)
        self.up(self.next)
        self.cluster = escrowmq.connect(self.machines.address)
        until("the cluster is healthy", self.healthy)
        assert self.read_all() == content
        until("the groups have the next level", lambda: self.levels() == {LEVEL})
        say("the head is upgraded, and the groups reached the next level")

    def uses_the_new_level(self) -> None:
        """A stable cut takes an operation of that level, which the groups refused before."""
        cut = self.cluster.admin.stable_cut(["t"])
        assert {number: cut["t", number] for number in range(GROUPS)} == {
            number: counted.total() for number, counted in self.read_all().items()
        }
        self.escrowmq(self.next, "down")
        say("done")


def main() -> None:
    """The whole story."""
    directory = Path(sys.argv[1])
    os.chdir(directory)  # what a driver has as its current directory, its workers import from
    story = MixedStory(directory)
    try:
        story.comes_up()
        story.upgrade("n1")
        story.everybody_leads()
        story.upgrade("n2")
        story.everybody_leads()
        story.finish()
        story.upgrades_the_head()
        story.uses_the_new_level()
    finally:
        for client in story.clients:
            client.kill()
        if ray.is_initialized():
            ray.shutdown()
        story.machines.shutdown()


if __name__ == "__main__":
    main()
