"""start_local and connect with real processes: committing, starting again on old data, and refusals."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import ray

import escrowmq
from escrowmq import Cluster, ClusterNotFound, ConfigError, DataDirLocked, DataDirMismatch, Message
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.local import TemporaryDir
from escrowmq.feedback.edges.shard_actor import start_shard
from tests.support.leaders import leader_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ray

Unique = Callable[[str], str]


def read_all(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """The values of ``count`` messages of partition 0."""
    found: list[bytes] = []
    deadline = time.monotonic() + 20
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(timeout_s=0.5)]
    return found


def test_a_started_cluster_commits_and_tells_how_it_is(cluster: Cluster, unique: Unique) -> None:
    topic = unique("hello")
    cluster.admin.create_topic(topic)
    with cluster.producer(app=unique("app"), linger_ms=0) as producer:
        assert producer.send(Message(topic, b"plain")).result(20).offset == 0
        with producer.transaction() as tx:
            tx.send(Message(topic, b"in escrow"))
    assert read_all(cluster, topic, 2) == [b"plain", b"in escrow"]
    assert cluster.status().healthy
    # The supervisor looks every few seconds; on a busy machine it may just have seen an election.
    wait_until(lambda: cluster.health()["ready"], 60.0, "a supervisor that has seen it")
    health = cluster.health()
    assert health["refusal"] is None
    assert [r["replica"] for r in health["replicas"]] == [0, 1, 2]


def test_every_replica_listens_on_the_loopback_only(cluster: Cluster) -> None:
    for replica in cluster.status().groups[0].replicas:
        assert replica.details["address"].startswith("127.0.0.1:")


def test_a_killed_broker_is_restarted_by_itself(cluster: Cluster, unique: Unique) -> None:
    cluster.admin.create_topic(topic := unique("survivor"))
    victim = leader_of(cluster)
    psutil.Process(victim.details["pid"]).kill()
    with cluster.producer(app=unique("app")) as producer:
        assert producer.send(Message(topic, b"after")).result(30).offset == 0
    deadline = time.monotonic() + 60
    while not (cluster.health()["ready"] and cluster.status().healthy) and time.monotonic() < deadline:
        time.sleep(0.2)
    status = cluster.status()
    assert status.healthy
    assert status.groups[0].replicas[victim.replica].details["pid"] != victim.details["pid"]


def test_a_second_cluster_in_the_same_namespace_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="already running in namespace 'escrowmq'; connect to it"):
        escrowmq.start_local()
    assert cluster.status().healthy


def test_two_clusters_in_two_namespaces_know_nothing_of_each_other(cluster: Cluster, unique: Unique) -> None:
    topic = unique("only-here")
    with escrowmq.start_local(
        replicas=1, namespace=unique("second"), broker={"log_format": "json"}
    ) as second:
        second.admin.create_topic(topic)
        assert second.info.cluster_id != cluster.info.cluster_id
        assert topic not in [info.name for info in cluster.admin.topics()]
        assert second.status().healthy
        logs_are_objects(second.info)
    assert cluster.status().healthy


def logs_are_objects(info: ClusterInfo) -> None:
    """What the cluster's processes log is JSON, also in the feedback process that a producer has started."""
    assert info.log_format == "json"
    names = {"supervisor": {"process": "supervisor"}, "broker-g0-r0": {"group": 0, "replica": 0}}
    actors = {name: ray.get_actor(name, info.namespace) for name in names}
    actors["feedback"] = start_shard(0, 1, info)
    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    for name, expected in {**names, "feedback": {"process": "feedback-0"}}.items():
        text = f"logged in {info.namespace} by {name}"
        said = lambda _, text=text: logging.getLogger("escrowmq.test").warning(text)  # noqa: E731
        ray.get(actors[name].__ray_call__.remote(said), timeout=30)
        files = [path.read_text() for path in logs.glob("worker-*.err")]
        (line,) = [line for file in files for line in file.splitlines() if text in line]
        told = json.loads(line)
        assert told["message"] == text and told["level"] == "warning" and expected.items() <= told.items()


@dataclass(frozen=True)
class Founded:
    """A stopped cluster of one replica with one message in topic ``kept``; secret given."""

    path: Path
    cluster_id: str
    secret: str = "the right one, long enough"

    def start(self, data_dir: Path, secret: str = secret) -> escrowmq.LocalCluster:
        return escrowmq.start_local(
            replicas=1, data_dir=data_dir, namespace="founded", security={"secret": secret}
        )


@pytest.fixture(scope="module")
def founded(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Founded:
    path = tmp_path_factory.mktemp("founded")
    with Founded(path, "").start(path) as running:
        running.admin.create_topic("kept")
        with running.producer(app="a") as producer:
            producer.send(Message("kept", b"1")).result(20)
    return Founded(path, running.info.cluster_id)


@pytest.fixture
def copy(founded: Founded, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded.path, tmp_path / "copy"))


def test_a_directory_opens_again_with_everything_in_it(founded: Founded) -> None:
    with founded.start(founded.path) as again:
        assert again.info.cluster_id == founded.cluster_id
        assert read_all(again, "kept", 1) == [b"1"]


def test_a_directory_in_use_is_refused(cluster: Cluster, unique: Unique) -> None:
    with pytest.raises(DataDirLocked, match="is in use by a running cluster"):
        escrowmq.start_local(data_dir=cluster.health()["data_dir"], namespace=unique("thief"))


def test_a_replica_directory_that_a_live_process_holds_is_refused(founded: Founded, copy: Path) -> None:
    with (copy / "g0-r0" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataDirLocked, match="is in use by process"):
            founded.start(copy)


KILLED = """
import os, signal, sys
from pathlib import Path
import escrowmq
if __name__ == "__main__":
    escrowmq.start_local(replicas=1, data_dir=Path(sys.argv[1]), namespace="killed")
    os.kill(os.getpid(), signal.SIGKILL)
"""
#: Like a container's first process that does not reap its children: orphans become its children, and zombies.
REAPS_NOBODY = """
import ctypes, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
print(subprocess.Popen([sys.executable, "-c", *sys.argv[1:]]).pid, flush=True)
sys.stdin.read()
"""


def test_the_directory_of_a_program_that_was_killed_is_free_at_once_also_where_nobody_reaps_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Regression: brokers held it for a minute, because Ray took a zombie for a living process."""
    container = subprocess.Popen(
        [sys.executable, "-c", REAPS_NOBODY, KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert container.stdout is not None
        program = psutil.Process(int(container.stdout.readline()))
        deadline = time.monotonic() + 60
        while program.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline, "it did not end"
            time.sleep(0.02)
        with escrowmq.start_local(replicas=1, data_dir=tmp_path, namespace="killed") as again:
            assert again.status().healthy
    finally:
        container.communicate(b"", timeout=10)


def test_data_of_another_cluster_are_not_founded_over(founded: Founded, copy: Path) -> None:
    (copy / "cluster.json").unlink()
    with pytest.raises(
        DataDirMismatch, match=f"holds replica 0 of group 0 of cluster '{founded.cluster_id}'"
    ):
        founded.start(copy)


def test_a_replica_directory_of_another_cluster_is_refused(founded: Founded, copy: Path) -> None:
    identity = copy / "g0-r0" / "identity.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "cluster_id": "another"}))
    with pytest.raises(DataDirMismatch, match="belongs to replica 0 of group 0 of cluster 'another'"):
        founded.start(copy)


def test_a_replica_directory_of_a_newer_version_is_refused(founded: Founded, copy: Path) -> None:
    identity = copy / "g0-r0" / "identity.json"
    identity.write_text(json.dumps({**json.loads(identity.read_text()), "format": 99}))
    with pytest.raises(escrowmq.UnknownVersion, match=r"has format 99.*upgrade"):
        founded.start(copy)


def test_a_wrong_secret_is_refused(founded: Founded) -> None:
    with pytest.raises(escrowmq.NotAuthorized, match="was founded with another secret") as refused:
        founded.start(founded.path, "a wrong one, long enough")
    assert "wrong one" not in str(refused.value)


def test_a_closed_cluster_object_says_so(cluster: Cluster, ray_local: str) -> None:
    other = escrowmq.connect(ray_local)
    producer = other.producer(app="x")
    other.close()
    other.close()
    for use in (lambda: other.producer(app="x"), lambda: other.consumer("g"), other.health):
        with pytest.raises(escrowmq.Closed, match="connect again"):
            use()
    with pytest.raises(escrowmq.Closed):
        producer.send(Message("t", b""))
    assert cluster.status().healthy  # closing a Cluster does not stop the cluster


def test_an_unknown_client_option_names_the_nearest(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'producer\.linger_ms'"):
        cluster.producer(app="x", linger=1)
    with pytest.raises(ConfigError, match=r"did you mean 'consumer\.fetch_bytes'"):
        cluster.consumer("g", fetch_byte=1)


def test_connecting_reaches_the_same_cluster_and_asks_for_its_namespace(
    cluster: Cluster, ray_local: str
) -> None:
    with escrowmq.connect(ray_local) as by_address, escrowmq.connect() as by_itself:
        assert by_address.info == by_itself.info == cluster.info
    with pytest.raises(ClusterNotFound, match=r"no EscrowMQ cluster in namespace 'elsewhere' .*'escrowmq'"):
        escrowmq.connect(ray_local, "elsewhere")


def test_a_process_connected_to_one_ray_is_not_taken_to_another(ray_local: str) -> None:
    with pytest.raises(ConfigError, match="is connected to the Ray cluster at"):
        escrowmq.connect("127.0.0.1:1")


def connect_elsewhere(*addresses: str) -> list[tuple[str, float]]:
    """``connect`` to each from a process without a Ray connection: what it says, and after how long (s)."""
    program = (
        "import json, sys, time, escrowmq, ray, escrowmq.cluster.connecting\n"
        "for address in sys.argv[1:]:\n"
        "    began = time.monotonic()\n"
        "    try:\n        escrowmq.connect(address)\n"
        "    except escrowmq.EscrowMQError as error:\n"
        "        print(json.dumps([f'{type(error).__name__} {error}', time.monotonic() - began]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *addresses], capture_output=True, text=True, timeout=90, check=True
    )
    said = [tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(said) == len(addresses), done.stdout + done.stderr
    return said


def test_no_ray_or_somebody_else_at_the_address_is_said_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.create_server(("127.0.0.1", 0)) as chatty:

        def talk() -> None:
            link, _ = chatty.accept()
            with link:
                link.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=talk, daemon=True).start()
        servers = [f"127.0.0.1:{server.getsockname()[1]}" for server in (chatty, mute)]
        nobody, talker, silent = connect_elsewhere("127.0.0.1:1", *servers)
    assert nobody[0].startswith("ClusterNotFound no Ray cluster at '127.0.0.1:1' (Connection refused); start")
    assert nobody[1] < 2.0
    assert talker[0].startswith("ClusterNotFound the server at") and talker[1] < 5.0
    assert silent[0].startswith("ClusterNotFound no Ray cluster at") and "timed out" in silent[0]
    assert silent[1] < 6.0


def test_a_malformed_address_is_refused() -> None:
    malformed = ("nonsense", "host:", ":1", "host:99999", "ray://127.0.0.1:10001")
    for said, _ in connect_elsewhere(*malformed):
        assert said.startswith("ConfigError address")


def test_a_second_ray_on_the_machine_makes_auto_ask_and_leaves_nothing_behind(
    ray_local: str, tmp_path: Path
) -> None:
    """When a program ends without stop(), its brokers, its Ray and its temporary files are removed; so are
    those of a program that was killed before."""
    left_over = TemporaryDir()
    os.close(left_over._lock)
    asking = (
        "import escrowmq\\n"
        "try:\\n    escrowmq.connect()\\n"
        "except escrowmq.ClusterNotFound as error:\\n    print(error)"
    )
    program = (
        "import escrowmq, psutil, subprocess, sys\n"
        "cluster = escrowmq.start_local(replicas=1, ray={'temp_dir': sys.argv[1]})\n"
        "cluster.admin.create_topic('t')\n"
        f"said = subprocess.run([sys.executable, '-c', '{asking}'], capture_output=True, text=True)\n"
        "print(said.stdout.strip(), said.stderr, cluster.address)\n"
        "print(cluster.health()['data_dir'])\n"
        "print(*[child.pid for child in psutil.Process().children(recursive=True)])\n"
    )
    short = Path("/tmp") / f"emq-{tmp_path.name[-8:]}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(short)], capture_output=True, text=True, timeout=110, check=True
    )
    shutil.rmtree(short, ignore_errors=True)
    said, data_dir, pids = done.stdout.strip().split("\n")
    assert said.startswith("several Ray clusters run on this machine") and "--address" in said
    assert ray_local in said and said.rpartition(" ")[2] in said.rpartition(" ")[0]
    assert done.stderr == ""
    assert not Path(data_dir).exists() and not left_over.path.exists()
    deadline = time.monotonic() + 10
    while (
        left := [pid for pid in map(int, pids.split()) if psutil.pid_exists(pid)]
    ) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def test_the_secret_is_in_no_log_and_on_no_command_line(cluster: Cluster) -> None:
    health = cluster.health()
    secret = (Path(health["data_dir"]) / "secret").read_text().strip()
    for replica in health["replicas"]:
        assert secret not in " ".join(psutil.Process(replica["pid"]).cmdline())
    assert secret not in json.dumps(health)
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    for log in (session / "logs").rglob("*"):
        if log.is_file():
            assert secret not in log.read_text(errors="replace"), log
