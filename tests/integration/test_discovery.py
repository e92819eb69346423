"""A cluster is found through its brokers while the supervisor is away; a search that finds nothing ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import ray

import escrowmq
from escrowmq import Cluster, Message, Unavailable
from escrowmq.cluster import discovery

pytestmark = pytest.mark.ray


@pytest.fixture
def supervisor_stands_still(cluster: Cluster) -> Iterator[None]:
    """The supervisor's node is lost: its handle exists, but does not answer."""
    from ray._private import state  # there is no public API for this without Ray's dashboard

    actors: dict[str, dict[str, Any]] = state.actors()  # type: ignore[no-untyped-call]
    (pid,) = (a["Pid"] for a in actors.values() if a["Name"] == "supervisor" and a["State"] == "ALIVE")
    process = psutil.Process(int(pid))
    process.suspend()
    yield
    process.resume()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.usefixtures("supervisor_stands_still")
def test_connect_asks_the_brokers(
    cluster: Cluster, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    names = {(cluster.address, cluster.info.namespace): cluster.info}
    monkeypatch.setattr(discovery, "_known", names if known else {})
    began = time.monotonic()
    found = escrowmq.connect(cluster.address)
    assert time.monotonic() - began < 5.0
    assert found.info == cluster.info
    topic = unique("found")
    found.admin.create_topic(topic)
    with found.producer(app="finder") as producer:
        producer.send(Message(topic, b"works")).result(10)
    found.close()


@pytest.mark.usefixtures("supervisor_stands_still")
def test_without_an_answer_it_says_so_in_bounded_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_brokers", lambda *_: [])
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"neither the supervisor nor a broker .* answers"):
        discovery.discover(cluster.info.namespace, cluster.address, 1.5)
    assert time.monotonic() - began < 4.0


def test_a_look_up_that_hangs_is_not_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own lookups wait up to a minute for a lost head."""
    monkeypatch.setattr(ray, "get_actor", lambda *_, **__: time.sleep(5.0))
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"Ray's head at .* has not answered.*When Ray's head is lost"):
        discovery.discover(cluster.info.namespace, cluster.address, 0.5)
    assert time.monotonic() - began < 3.0
