"""The scenario of test_three_nodes.py, in its own process: a process can connect to only one Ray cluster.

Three Ray nodes on this machine. Although they share a file system, each has its own directory by its name, as
on separate machines. Run by hand: ``python -m tests.integration.nodes_scenario DIRECTORY``; with
``--commands`` it goes on with more commands.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import ray
from ray.cluster_utils import Cluster as RayCluster

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.cluster.ray_use import system_config
from escrowmq.cluster.settings import RaySettings
from tests.support.exporting import exporting

NODES = ("n0", "n1", "n2")
PATIENCE_S = 60.0


def say(text: str) -> None:
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


BEGAN = time.monotonic()


def until(what: str, condition: Callable[[], Any], cluster: Cluster) -> Any:
    """Wait until ``condition()`` returns something true, and return that."""
    deadline = time.monotonic() + PATIENCE_S
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = condition()
        except escrowmq.EscrowMQError as error:
            last = error
        if last and not isinstance(last, Exception):
            return last
        time.sleep(0.2)
    raise AssertionError(
        f"not within {PATIENCE_S} s: {what}; last: {last!r}\n{cluster.health()}\n{cluster.status()}"
    )


def command(*arguments: str) -> Any:
    """Run ``escrowmq ... --format json`` in its own process; returns its result."""
    done = subprocess.run(
        [sys.executable, "-c", "from escrowmq.cluster.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"escrowmq {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stderr


def seats(cluster: Cluster) -> dict[int, dict[str, Any]]:
    """Replica -> its seat, as the supervisor reports it."""
    return {entry["replica"]: entry for entry in cluster.health()["replicas"]}


def settled(cluster: Cluster) -> bool:
    """Whether every replica answers and has applied the same entries."""
    status = cluster.status()
    applied = {replica.applied_index for replica in status.groups[0].replicas}
    return bool(status.healthy and cluster.health()["ready"] and len(applied) == 1)


def read_all(cluster: Cluster, count: int) -> list[bytes]:
    """Values of topic ``t``, at least ``count``."""
    found: list[bytes] = []
    deadline = time.monotonic() + 30
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([("t", 0)])
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(timeout_s=0.5)]
    return found


def shown(exporter: str, metric: str, label: str) -> dict[int, float]:
    """The values of a metric on the exporter's page, by the number in one of its labels."""
    with urlopen(f"http://{exporter}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    return {
        int(found[1]): float(found[2])
        for found in re.finditer(rf'^{metric}{{[^}}]*\b{label}="(\d+)"[^}}]*}} (\S+)$', page, re.MULTILINE)
    }


class Story:
    """The nodes and the cluster on them; each step leaves the cluster healthy for the next."""

    def __init__(self, directory: Path) -> None:
        settings = RaySettings()
        self.data_dir = directory / "data"
        self.machines = RayCluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "node_name": "n0",
                "include_dashboard": False,
                "temp_dir": str(directory / "ray"),
                "_system_config": system_config(settings),
            },
        )
        self.nodes = {name: self.machines.add_node(num_cpus=1, node_name=name) for name in NODES[1:]}
        self.sent = 0

    def send(self, cluster: Cluster) -> None:
        """Ten messages in a transaction."""
        with cluster.producer(app="story") as producer, producer.transaction() as tx:
            for _ in range(10):
                tx.send(Message("t", b"%d" % self.sent))
                self.sent += 1

    def check_all_there(self, cluster: Cluster) -> None:
        assert read_all(cluster, self.sent) == [b"%d" % n for n in range(self.sent)]

    def comes_up_spread_over_the_nodes(self) -> Cluster:
        address = self.machines.address
        arguments = ("--address", address, "--data-dir", str(self.data_dir), "--nodes-min", "3")
        first = command("up", *arguments, "--config", str(self.config()), "--format", "json")
        again = command("up", *arguments, "--config", str(self.config()), "--format", "json")
        assert first == again, "a second `up` must change nothing"
        cluster = escrowmq.connect(address)
        assert sorted(seat["node"] for seat in seats(cluster).values()) == list(NODES)
        node_ids = {replica.details["node_id"] for replica in cluster.status().groups[0].replicas}
        assert len(node_ids) == 3, "every replica really runs on a node of its own"
        cluster.admin.create_topic("t")
        self.send(cluster)
        say("up, three replicas on three nodes")
        return cluster

    def config(self) -> Path:
        """A configuration that waits only briefly for lost nodes: these do not come back from a reboot."""
        path = self.data_dir.parent / "escrowmq.yaml"
        path.write_text("supervisor: {replace_after_s: 2}\n")
        return path

    def moves_the_leader_off_the_head_node(self, cluster: Cluster) -> str:
        """Ray itself runs on the head node, so the leader's node can be killed only if it is another one."""
        leader = self.leader(cluster)
        if leader["node"] == "n0":
            psutil.Process(leader["pid"]).kill()
            until("another leads", lambda: self.leader(cluster)["node"] != "n0", cluster)
            until("the killed one is back", lambda: settled(cluster), cluster)
            leader = self.leader(cluster)
        return str(leader["node"])

    def leader(self, cluster: Cluster) -> dict[str, Any]:
        number = until("a leader", lambda: [cluster.status().groups[0].leader], cluster)[0]
        return seats(cluster)[number or 0]

    def shows_its_replicas(self, cluster: Cluster, exporter: str, missing: str | None) -> None:
        """The exporter sees the replicas on all nodes, and which of them is missing."""
        up = {replica: float(seat["node"] != missing) for replica, seat in seats(cluster).items()}
        until(f"up: {up}", lambda: shown(exporter, "escrowmq_replica_up", "replica") == up, cluster)
        until("a leader", lambda: shown(exporter, "escrowmq_group_has_leader", "group") == {0: 1.0}, cluster)
        spare = {0: 1.0 if missing is None else 0.0}
        until("spare", lambda: shown(exporter, "escrowmq_group_spare_replicas", "group") == spare, cluster)
        say(f"the exporter shows the replicas; missing: {missing}")

    def survives_the_loss_of_the_leaders_node(self, cluster: Cluster) -> str:
        victim = self.moves_the_leader_off_the_head_node(cluster)
        replica = next(r for r, seat in seats(cluster).items() if seat["node"] == victim)
        self.machines.remove_node(self.nodes.pop(victim), allow_graceful=False)
        began = time.monotonic()
        self.send(cluster)
        say(f"committed {time.monotonic() - began:.1f} s after the leader's node {victim} was killed")
        until("the supervisor misses the node", lambda: seats(cluster)[replica]["node_missing"], cluster)
        self.check_all_there(cluster)
        # Every node has a replica of this group, so nothing moves, however long the node stays away.
        time.sleep(3.0)
        assert seats(cluster)[replica]["node"] == victim
        return victim

    def takes_the_replica_back_with_the_node(self, cluster: Cluster, victim: str) -> None:
        self.nodes[victim] = self.machines.add_node(num_cpus=1, node_name=victim)
        until("the replica is back", lambda: settled(cluster), cluster)
        (seat,) = (seat for seat in seats(cluster).values() if seat["node"] == victim)
        assert seat["incarnation"] == 0, "it came back to its own data"
        self.check_all_there(cluster)
        say(f"node {victim} is back, and its replica with it")

    def outlives_its_supervisor(self, cluster: Cluster) -> None:
        ray.kill(ray.get_actor("supervisor", namespace="escrowmq"), no_restart=False)
        self.send(cluster)
        until("the supervisor is back", lambda: cluster.health()["ready"], cluster)
        say("the supervisor was killed and is back")

    def rebuilds_a_replica_elsewhere(self, cluster: Cluster) -> None:
        lost = sorted(self.nodes)[0]
        replica = next(r for r, seat in seats(cluster).items() if seat["node"] == lost)
        self.machines.remove_node(self.nodes.pop(lost), allow_graceful=False)
        self.nodes["n3"] = self.machines.add_node(num_cpus=1, node_name="n3")
        until("the replica moves", lambda: seats(cluster)[replica]["node"] == "n3", cluster)
        until("the replica has copied the log", lambda: settled(cluster), cluster)
        assert seats(cluster)[replica]["incarnation"] == 1
        assert (self.data_dir / f"g0-r{replica}-i1" / "identity.json").exists()
        self.send(cluster)
        self.check_all_there(cluster)
        say(f"node {lost} is gone for good; its replica was rebuilt on n3")

    def empties_a_node(self, cluster: Cluster) -> None:
        """Its replica is replaced by one with another number, and the node can be removed."""
        drained = next(name for name in sorted(self.nodes) if name != "n3")
        self.nodes["n4"] = self.machines.add_node(num_cpus=1, node_name="n4")
        until("the new node", lambda: any(one.node == "n4" for one in cluster.admin.nodes()), cluster)
        said = command("node", "drain", drained, "--address", self.machines.address)
        # Which steps it prints depends on when it looks; the last line does not.
        assert said.startswith("group 0: ") and said.rstrip().endswith("done"), said
        now = seats(cluster)
        assert now[3]["node"] == "n4" and drained not in {seat["node"] for seat in now.values()}
        assert cluster.admin.members()[0].voters == tuple(sorted(now))
        self.machines.remove_node(self.nodes.pop(drained), allow_graceful=False)
        self.send(cluster)
        self.check_all_there(cluster)
        until("that all is settled", lambda: settled(cluster), cluster)
        say(f"node {drained} was drained, and is gone; replica 3 is on n4")

    def takes_a_node_out_for_a_while(self, cluster: Cluster) -> None:
        """Its leader hands over; a second node must not be taken out at the same time."""
        admin, leader = cluster.admin, self.leader(cluster)["node"]
        admin.begin_maintenance(leader)
        until("another leads", lambda: self.leader(cluster)["node"] != leader, cluster)
        other = self.leader(cluster)["node"]
        try:
            admin.begin_maintenance(other)
        except escrowmq.ConfigError as error:
            assert "no running majority" in str(error)
        else:
            raise AssertionError("a majority may be taken out")
        admin.open_node(leader)
        assert {one.use for one in admin.nodes()} <= {"open", "drained"}
        assert not [shift for shift in admin.plan_rebalance() if not shift.leads], "three need three"
        say(f"node {leader} was taken out for a while")

    def spreads_over_a_new_node(self, cluster: Cluster) -> None:
        """By the commands of an operator: the head keeps no replica while another node is free."""
        self.nodes["n5"] = self.machines.add_node(num_cpus=1, node_name="n5")
        until("the new node", lambda: any(one.node == "n5" for one in cluster.admin.nodes()), cluster)
        (planned,) = self.moves("plan")
        assert (planned["from_node"], planned["to_node"]) == ("n0", "n5")
        assert self.moves("apply") == [planned]
        now = seats(cluster)
        assert {seat["node"] for seat in now.values()} == {"n3", "n4", "n5"}
        assert planned["replica"] not in now and self.moves("plan") == []
        until(
            "its directory is gone", lambda: not [*self.data_dir.glob(f"g0-r{planned['replica']}*")], cluster
        )
        self.send(cluster)
        self.check_all_there(cluster)
        say("the head's replica was replaced by one on a new node")

    def moves(self, what: str) -> list[dict[str, Any]]:
        """The replicas, not the leaders, that a plan to spread them moves."""
        shifts = command("rebalance", what, "--format", "json", "--address", self.machines.address)
        return [shift for shift in shifts if not shift["leads"]]

    def obeys_the_commands_for_nodes_and_members(self, cluster: Cluster) -> None:
        address = ("--address", self.machines.address)

        def use(node: str) -> str:
            listed = command("node", "list", "--format", "json", *address)
            return next(str(line["use"]) for line in listed if line["node"] == node)

        leader = str(self.leader(cluster)["node"])
        command("node", "maintenance", "on", leader, *address)
        assert use(leader) == "maintained" and self.leader(cluster)["node"] != leader
        command("node", "maintenance", "off", leader, *address)
        assert use(leader) == "open"
        (before,) = command("members", "--format", "json", *address)
        going = next(rid for rid, seat in seats(cluster).items() if seat["node"] == "n5")
        command("members", "move", "0", str(going), "n0", *address)
        (after,) = command("members", "--format", "json", *address)
        assert set(before["voters"]) - set(after["voters"]) == {going}
        assert seats(cluster)[before["next_replica"]]["node"] == "n0"
        assert command("members", "changes", "--format", "json", *address) == []
        until("that all is settled", lambda: settled(cluster), cluster)
        self.check_all_there(cluster)
        say(f"node {leader} was taken out for a while, and replica {going} moved, by command")

    def goes_down_and_comes_up_again(self, cluster: Cluster) -> None:
        address = self.machines.address
        cluster_id = cluster.info.cluster_id
        cluster.close()
        command("down", "--address", address)
        arguments = ("--address", address, "--data-dir", str(self.data_dir), "--format", "json")
        assert command("up", *arguments)["cluster_id"] == cluster_id
        status = command("status", "--address", address, "--format", "json")
        assert status["healthy"] and len(status["supervisor"]["nodes"]) == len(self.nodes) + 1
        with escrowmq.connect(address) as again:
            self.check_all_there(again)
        command("down", "--address", address)
        say("down and up again with everything")


def main() -> None:
    """The whole story."""
    story = Story(Path(sys.argv[1]))
    try:
        cluster = story.comes_up_spread_over_the_nodes()
        with exporting(cluster) as exporter:
            story.shows_its_replicas(cluster, exporter, None)
            victim = story.survives_the_loss_of_the_leaders_node(cluster)
            story.shows_its_replicas(cluster, exporter, victim)
            story.takes_the_replica_back_with_the_node(cluster, victim)
            story.shows_its_replicas(cluster, exporter, None)
        story.outlives_its_supervisor(cluster)
        story.rebuilds_a_replica_elsewhere(cluster)
        story.empties_a_node(cluster)
        story.takes_a_node_out_for_a_while(cluster)
        if "--commands" in sys.argv:
            story.spreads_over_a_new_node(cluster)
            story.obeys_the_commands_for_nodes_and_members(cluster)
        story.goes_down_and_comes_up_again(cluster)
    finally:
        if ray.is_initialized():
            ray.shutdown()
        story.machines.shutdown()


if __name__ == "__main__":
    main()
