"""Handles of one process share its connection to Ray, and the last one leaves it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import ray

import escrowmq
from escrowmq import Cluster

pytestmark = pytest.mark.ray

#: A process of its own, which has not joined Ray. Arguments: Ray's address, a topic.
PROGRAM = """
import sys, ray, escrowmq
address, topic = sys.argv[1:]
one, two = escrowmq.connect(address), escrowmq.connect()
producer = two.producer(app="handles", linger_ms=0)
one.close()
assert producer.send(escrowmq.Message(topic, b"after", partition=0)).result(10).offset == 0
three = escrowmq.connect()
two.close()
assert three.status().healthy
three.close()
assert not ray.is_initialized()
with escrowmq.connect(address) as again:
    assert again.status().healthy
assert not ray.is_initialized()
print("done")
"""


def test_the_last_handle_leaves(cluster: Cluster, topic: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.address, topic],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_what_the_application_has_joined_stays(cluster: Cluster) -> None:
    """This process has called ``ray.init`` itself, and ``cluster`` uses it."""
    with escrowmq.connect() as one, escrowmq.connect(cluster.address) as two:
        assert one.info == two.info == cluster.info
    assert ray.is_initialized() and cluster.status().healthy
