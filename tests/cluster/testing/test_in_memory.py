"""The cluster in memory: what it needs, what it has not, and its documentation. The public face that it
shares with a real cluster is tested in tests/integration."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import escrowmq
from escrowmq import NotSupported, TooManyOpenTransactions
from escrowmq.testing import InMemoryCluster
from tests.support.in_memory import COMMITTED, Calls, leave_open, readable

ROOT = Path(__file__).resolve().parents[3]


WITHOUT = """
import sys, threading, builtins
opened, real = [], builtins.open
from escrowmq import Message
from escrowmq.testing import InMemoryCluster
builtins.open = lambda *args, **more: opened.append(args[0]) or real(*args, **more)
with InMemoryCluster() as cluster:
    cluster.admin.create_topic("t")
    cluster.producer("app").send(Message("t", b"x")).result(0)
    assert [r.value for r in cluster.consumer("g", ["t"], auto_offset_reset="earliest").poll()] == [b"x"]
    print(threading.active_count(), "ray" in sys.modules, opened)
"""


def test_it_needs_no_ray_no_thread_and_no_file() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split("\n")[0] == "1 False []", ran.stdout


def test_nothing_is_left_of_a_cluster_that_was_closed() -> None:
    gone = []
    for _ in range(3):
        with InMemoryCluster() as cluster:
            cluster.admin.create_topic("orders")
            producer = cluster.producer("shop", tx_status_querier=Calls(cluster, lambda query_id: COMMITTED))
            leave_open(producer, "1")
            cluster.clock.advance(10)
            assert readable(cluster) == [b"1"]
            gone.append(weakref.ref(cluster.stage))
        del cluster, producer
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3


def test_the_limit_of_open_transactions_is_that_of_its_configuration() -> None:
    config = escrowmq.load_config(overrides={"broker": {"open_transactions_max": 2}})
    with InMemoryCluster(config=config) as cluster:
        cluster.admin.create_topic("orders")
        producer = cluster.producer("shop", open_limit_wait_s=3.0)
        leave_open(producer, "1", "2")
        before = cluster.clock.time()
        with pytest.raises(TooManyOpenTransactions):
            leave_open(producer, "3")
        assert cluster.clock.time() - before == pytest.approx(3.0, abs=0.5), "it has waited as long as asked"


def test_what_it_has_not_says_so(cluster: InMemoryCluster) -> None:
    admin = cluster.admin
    for call in (
        cluster.health,
        cluster.leftovers,
        lambda: cluster.head_waits({}),
        lambda: admin.set_replicas(0, 3),
        lambda: admin.move_replica(0, 0, "node"),
        lambda: admin.drain_node("node"),
        lambda: admin.begin_maintenance("node"),
        admin.nodes,
        admin.rebalance,
        admin.member_changes,
    ):
        with pytest.raises(NotSupported, match="in memory has no"):
            call()
    (members,) = admin.members()
    assert members.voters == (0,)


def test_the_example_of_the_documentation_passes(tmp_path: Path) -> None:
    text = (ROOT / "docs/testing.md").read_text()
    files = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in files] == ["shop.py", "conftest.py", "test_shop.py"]
    for name, content in files:
        (tmp_path / name).write_text(content)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path))),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


def test_time_passes_while_a_busy_application_has_messages_in_advance() -> None:
    """A part was due at a sum that the difference did not reach: it was run on and on."""
    for ms in (0, 1, 4, 7):  # with three of them (x + 30) - x is below 30
        with InMemoryCluster() as cluster:
            cluster.admin.create_topic("orders")
            cluster.clock.advance(3 + ms / 1000)
            consumer = cluster.share_consumer("mail", ["orders"], auto_offset_reset="earliest")
            consumer.poll(timeout_s=0)
            cluster.producer("shop").send(escrowmq.Message("orders", b"m")).result(0)
            cluster.clock.advance(60)  # longer than the lease, after which it counts as busy
