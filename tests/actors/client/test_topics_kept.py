"""A client that hears of short-lived topics for years keeps a bounded number of them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, cast

import pytest

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.router import Router
from escrowmq.actors.client.topic_placement import TOPICS_KEPT, TopicPlacement
from escrowmq.replication.errors import UnknownTopic
from escrowmq.replication.model import NO_ID, TopicInfo

KEPT = 10


def info(name: str, topic_id: int = 5) -> TopicInfo:
    return TopicInfo(name, 4, "hold", 15, 6_000, -1, -1, 1, topic_id=topic_id)


class Leader:
    """Stands for the router of two groups: every topic exists that it is asked for by name."""

    def __init__(self) -> None:
        self.placement = TopicPlacement(2, KEPT)
        self.asked = 0

    def leader_call(self, gid: int, method: str, names: Any, *, timeout_s: float) -> Future[Any]:
        self.asked += 1
        done: Future[Any] = Future()
        done.set_result([info(name) for name in names])
        return done


def test_topics_are_bounded_and_those_in_use_stay() -> None:
    placement = TopicPlacement(2, KEPT)
    placement.hear([info("used"), info("idle")])
    for number in range(1_000):
        placement.hear([info(f"topic-{number}")])
        assert placement.count <= KEPT and placement.group_of("used", 0) == 1 and placement.id_of("used") == 5
    assert placement.unheard(["used", "idle"]) == {"idle"} and placement.id_of("idle") == NO_ID
    with pytest.raises(UnknownTopic):
        placement.group_of("idle", 0)


def test_an_id_that_is_heard_alone_names_no_group() -> None:
    placement = TopicPlacement(2, KEPT)
    placement.hear_id("t", 9)
    assert placement.id_of("t") == 9 and placement.unheard(["t"]) == {"t"}
    placement.hear([info("t", 9)])
    placement.hear_id("t", 12)
    assert placement.id_of("t") == 12 and not placement.unheard(["t"]) and placement.group_of("t", 1) == 0


def test_all_topics_of_a_cluster_that_has_more_are_kept() -> None:
    placement = TopicPlacement(2, KEPT)
    every = [info(f"topic-{number}") for number in range(5 * KEPT)]
    for _ in range(3):
        placement.hear(every)
        assert not placement.unheard(topic.name for topic in every)


def test_a_topic_with_a_description_has_a_group_however_many_were_heard_of() -> None:
    leader = Leader()
    # Short questions of others go through the same one, and bring no description.
    catalogs = [TopicCatalog(cast(Router, leader), clock=lambda: 0.0) for _ in range(2)]
    for number in range(90):
        catalogs[0].partitions("seldom" if number % 30 == 0 else f"topic-{number}")
        leader.placement.hear([info(f"heard-{number}-{n}") for n in range(4)])
        for catalog in catalogs:
            for name in ["seldom", *(f"topic-{n}" for n in range(number))]:
                if catalog.known(name) is not None:
                    assert not leader.placement.unheard([name])
            assert len(catalog._topics) <= KEPT
    asked = leader.asked
    assert catalogs[0].partitions("seldom") == 4 and leader.placement.group_of("seldom", 0) == 1
    assert leader.asked == asked + 1, "its description was forgotten with its group"


def test_a_catalog_that_nobody_holds_is_not_kept() -> None:
    leader = Leader()
    for _ in range(100):
        TopicCatalog(cast(Router, leader))
    assert len(leader.placement._described) <= 1


def test_the_bound_is_above_what_a_client_uses_at_once() -> None:
    assert TopicPlacement(1)._half == TOPICS_KEPT // 2 == 50_000
