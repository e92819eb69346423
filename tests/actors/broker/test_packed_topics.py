"""All topics for many clients: packed once, and as those of earlier versions know it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.broker import packed_topics
from escrowmq.actors.broker.packed_topics import TopicPacker
from escrowmq.replication.format import ops
from escrowmq.replication.host.running import NOT_RUNNING
from escrowmq.replication.model import TopicInfo
from tests.support.broker_group import BrokerGroup


def test_a_list_is_packed_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[object] = []
    dumps = pickle.dumps

    def counted(what: Any, protocol: int) -> bytes:
        packed.append(what)
        return dumps(what, protocol=protocol)

    monkeypatch.setattr(packed_topics.pickle, "dumps", counted)
    packer = TopicPacker()
    first = [TopicInfo(f"t{n}", 1, "hold", 15, 6_000, -1, -1) for n in range(3)]
    for topics in (first, first[:2]):
        for _ in range(5):
            arrived = pickle.loads(dumps(packer.packed(topics), protocol=5))  # noqa: S301
            assert type(arrived) is list and arrived == topics
    assert packed == [first, first[:2]]


def test_topics_are_read_beside_the_drivers_thread(tmp_path: Path) -> None:
    """A hundred clients that asked that thread for 5,000 topics cost six elections."""
    with BrokerGroup(tmp_path, replicas=1) as group:
        for name in ("a", "b", "c"):
            group.submit(ops.create_topic(name, {}))
        parts = group.leader().parts

        def busy(*_: object) -> None:
            raise AssertionError("asked in the driver's thread")

        parts.running.led = busy  # type: ignore[method-assign, assignment]
        status, everything = parts.reads.topics(True)
        assert status == "ok" and [topic.name for topic in everything] == ["a", "b", "c"]
        assert parts.reads.topics(True)[1] is everything, "as long as nothing changes"
        status, named = parts.reads.topics(["c", "x", "a"])
        assert status == "ok" and [topic.name for topic in named] == ["c", "a"]
        group.submit(ops.delete_topic("b"))
        assert [topic.name for topic in parts.reads.topics(True)[1]] == ["a", "c"]
        group.submit(ops.create_topic("b", {"partitions": 3}))
        assert [topic.partitions for topic in parts.reads.topics()[1]] == [1, 1, 3]
    assert parts.reads.topics(True) == parts.reads.topics(["a"]) == NOT_RUNNING
