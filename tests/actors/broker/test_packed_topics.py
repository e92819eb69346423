"""All topics for many clients: packed once, and they arrive as a plain list."""

from __future__ import annotations

import io
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from escrowmq.actors.broker import broker_calls
from escrowmq.actors.broker.broker_calls import PIECE_TOPICS, PackedTopics, TopicPacker
from escrowmq.replication.format import ops
from escrowmq.replication.host.running_replica import NOT_RUNNING
from escrowmq.replication.model import TopicInfo
from tests.support.broker_group import BrokerGroup


def pickled(topics: PackedTopics) -> bytes:
    """Pickle as Ray does."""
    file = io.BytesIO()
    pickle.Pickler(file, protocol=5).dump(topics)
    return file.getvalue()


def some_topics(count: int) -> list[TopicInfo]:
    return [TopicInfo(f"t{n}", 1, "hold", 15, 6_000, -1, -1) for n in range(count)]


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[list[TopicInfo]]:
    """What was packed, in the order in which it was; packing takes a while."""
    seen: list[list[TopicInfo]] = []
    dumps = pickle.dumps

    def counted(what: list[TopicInfo], protocol: int) -> bytes:
        seen.append(what)
        time.sleep(0.01)
        return dumps(what, protocol=protocol)

    monkeypatch.setattr(broker_calls.pickle, "dumps", counted)
    return seen


def test_a_list_is_packed_once_for_each_change(packed: list[list[TopicInfo]]) -> None:
    packer = TopicPacker()
    first = some_topics(3)
    for topics in (first, first[:2], []):
        for _ in range(5):
            arrived = pickle.loads(pickled(packer.packed(topics)))  # noqa: S301
            assert type(arrived) is list and arrived == topics
    assert packed == [first, first[:2]]


def test_callers_at_once_pack_a_list_once_and_in_pieces(packed: list[list[TopicInfo]]) -> None:
    """Sixteen threads that each packed 10,000 topics kept the loop from its heartbeats for 860 ms."""
    topics, packer = some_topics(2 * PIECE_TOPICS + 1), TopicPacker()
    with ThreadPoolExecutor(8) as pool:
        arrived = list(pool.map(lambda _: pickle.loads(pickled(packer.packed(topics))), range(16)))  # noqa: S301
    assert all(found == topics for found in arrived)
    assert [len(piece) for piece in packed] == [PIECE_TOPICS, PIECE_TOPICS, 1]


def test_topics_are_read_beside_the_drivers_thread(tmp_path: Path) -> None:
    """When a hundred clients asked that thread for 5,000 topics, it cost six elections."""
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
