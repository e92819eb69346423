"""News for a streaming query: at once when there is any, and next to no calls while there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from escrowmq.actors.client.topic_placement import TopicPlacement
from escrowmq.replication.calling.answers import PartitionBounds
from escrowmq.replication.errors import OutcomeUnknown, Overloaded, Unavailable, UnknownTopic
from escrowmq.replication.model import ResultCode, TopicInfo
from escrowmq.spark_integration.source import heads
from escrowmq.spark_integration.source.heads import LeaderCatalog, SourceHeadWatch
from escrowmq.spark_integration.source.options import Subscription
from escrowmq.spark_integration.source.stream_planning import Bounds, Heads

A0, B0 = ("a", 0), ("b", 0)


class Network:
    """In the router's place: leaders of two groups that answer at once, or park a question about news."""

    def __init__(self) -> None:
        self.info = SimpleNamespace(groups=2)
        self.placement = TopicPlacement(2)
        self.ends = {A0: 5, B0: 7}
        self.calls: list[tuple[int, str]] = []
        self.refusal: Exception | None = None
        #: So many calls fail first.
        self.refusals = 0
        self._parked: list[tuple[list[Any], Future[Any]]] = []

    def leader_call(self, gid: int, method: str, *args: Any, **_: Any) -> Future[Any]:
        self.calls.append((gid, method))
        future: Future[Any] = Future()
        if self.refusals > 0:
            self.refusals -= 1
            future.set_exception(Unavailable("no leader", 0.0))
        elif self.refusal is not None:
            future.set_exception(self.refusal)
        elif method == "topics":
            future.set_result([TopicInfo(topic, 1, "hold", 15, 6_000, -1, -1) for topic, _ in self.ends])
        else:
            requests, wait_s = args
            if wait_s and all(self.ends.get((t, p)) == known for t, p, known in requests):
                self._parked.append((requests, future))
            else:
                future.set_result(self._answer(requests))
        return future

    def _answer(self, requests: list[Any]) -> PartitionBounds:
        found = [self.ends.get((topic, p)) for topic, p, _ in requests]
        codes = [ResultCode.UNKNOWN_TOPIC if end is None else ResultCode.OK for end in found]
        return PartitionBounds([*map(int, codes)], [0] * len(found), [end or 0 for end in found])

    def commit(self, which: tuple[str, int], end: int) -> None:
        self.ends[which] = end
        for parked in list(self._parked):
            if any((t, p) == which for t, p, _ in parked[0]):
                self._parked.remove(parked)
                parked[1].set_result(self._answer(parked[0]))


class Clock:
    def __init__(self) -> None:
        self.now, self.pauses = 0.0, [0.0]

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def clock() -> Clock:
    return Clock()


EVERYTHING = Subscription(pattern=".*")


class Catalog(LeaderCatalog):
    """Gives these cuts."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, 1.0, EVERYTHING)  # type: ignore[arg-type]
        self.asked: list[Sequence[str]] = []
        self.cuts: Callable[[Sequence[str]], Mapping[tuple[str, int], int]] = lambda topics: {}

    def cut(self, topics: Sequence[str]) -> Mapping[tuple[str, int], int]:
        self.asked.append(topics)
        return self.cuts(topics)


@pytest.fixture
def catalog(network: Network) -> Catalog:
    return Catalog(network)


@pytest.fixture
def watch(network: Network, clock: Clock, catalog: Catalog) -> SourceHeadWatch:
    how: Any = {"clock": clock, "pause": clock.pause, "idle_wait_s": 0.01, "catalog": catalog}
    return SourceHeadWatch(network, EVERYTHING, **how)  # type: ignore[arg-type]


def beyond(**ends: int) -> Callable[[Heads], bool]:
    return lambda found: {which[0]: head.end for which, head in found.items()} != ends


def test_an_idle_query_parks_one_question_per_group_and_asks_nothing_else(
    watch: SourceHeadWatch, network: Network
) -> None:
    assert watch.fresh() == {A0: Bounds(0, 5), B0: Bounds(0, 7)}
    watch.news(beyond(a=5, b=7))
    network.calls.clear()
    for _ in range(20):
        watch.news(beyond(a=5, b=7))
    assert network.calls == []


def test_news_come_with_the_parked_answer_and_leave_the_other_groups_parked(
    watch: SourceHeadWatch, network: Network
) -> None:
    watch.fresh()
    watch.news(beyond(a=5, b=7))
    network.calls.clear()
    network.commit(A0, 6)
    assert watch.news(beyond(a=5, b=7))[A0] == Bounds(0, 6)
    assert {gid for gid, _ in network.calls} == {97 % 2}
    network.commit(A0, 9)  # while a batch runs
    assert watch.news(beyond(a=6, b=7))[A0] == Bounds(0, 9), "not what was known when the batch began"


def test_new_topics_are_noticed_and_deleted_ones_forgotten(
    watch: SourceHeadWatch, network: Network, clock: Clock
) -> None:
    watch.fresh()
    network.ends["c", 0] = 3
    clock.now += heads.DISCOVERY_S
    assert watch.news(beyond(a=5, b=7))["c", 0] == Bounds(0, 3)
    del network.ends[A0]
    clock.now += heads.DISCOVERY_S
    assert A0 not in watch.news(beyond(a=5, b=7, c=3))


@pytest.mark.parametrize(
    "refusal", [Overloaded("full", 0.3), Unavailable("no leader", 0.0), OutcomeUnknown("watch")]
)
def test_a_query_waits_for_brokers_longer_and_longer_but_not_for_ever(
    watch: SourceHeadWatch, network: Network, clock: Clock, refusal: Exception
) -> None:
    known = dict(watch.fresh())
    network.refusal = refusal
    for _ in range(10):
        assert watch.news(beyond()) == known
    assert clock.pauses[-1] >= heads.RETRY.longest_s and max(clock.pauses) <= 1.5 * heads.RETRY.longest_s
    network.refusal = None
    network.ends[A0] = 50
    assert watch.news(beyond(a=5, b=7))[A0] == Bounds(0, 50)
    network.refusal = refusal
    with pytest.raises(type(refusal)):
        for _ in range(500):
            watch.news(beyond())
    assert clock.now > heads.PATIENCE_S


def test_the_first_look_waits_for_brokers_like_every_other(
    watch: SourceHeadWatch, network: Network, clock: Clock
) -> None:
    network.refusals = 40
    assert watch.fresh() == {A0: Bounds(0, 5), B0: Bounds(0, 7)}
    assert 30.0 < clock.now < heads.PATIENCE_S
    assert clock.pauses[1] < clock.pauses[4] and max(clock.pauses) <= 1.5 * heads.RETRY.longest_s
    network.refusal, began = Overloaded("full", 0.0), clock.now
    with pytest.raises(Overloaded):
        watch.fresh()
    assert heads.PATIENCE_S < clock.now - began < heads.PATIENCE_S + 5.0


def test_any_question_waits_for_brokers_and_other_errors_do_not(
    watch: SourceHeadWatch, network: Network, clock: Clock
) -> None:
    failing = [OutcomeUnknown("offsets"), Unavailable("no leader", 0.0)]

    def ask() -> str:
        if failing:
            raise failing.pop()
        return "answer"

    assert watch.patiently(ask) == "answer"
    assert len(clock.pauses) == 1 + 2

    def wrong() -> None:
        raise UnknownTopic("nope")

    with pytest.raises(UnknownTopic):
        watch.patiently(wrong)
    assert len(clock.pauses) == 1 + 2


def test_time_that_a_batch_took_is_not_time_that_brokers_did_not_answer(
    watch: SourceHeadWatch, network: Network, clock: Clock
) -> None:
    known = dict(watch.fresh())
    clock.now += 10 * heads.PATIENCE_S
    network.refusal = Unavailable("no leader", 0.0)
    for _ in range(10):
        assert watch.news(beyond()) == known
    clock.now += 10 * heads.PATIENCE_S
    assert watch.news(beyond()) == known


def test_heads_at_a_cut(catalog: Catalog, watch: SourceHeadWatch) -> None:
    catalog.cuts = lambda topics: {A0: 4}
    watch.fresh()
    found = {A0: Bounds(1, 5), B0: Bounds(2, 7)}
    assert watch.at_a_cut({A0: 3, B0: 6}, found) == {A0: Bounds(1, 4), B0: Bounds(2, 6)}
    assert watch.at_a_cut({A0: 3}, found)[B0] == Bounds(2, 2), "a new one begins later"
    assert catalog.asked == [["a", "b"]] * 2 and watch.at_a_cut({}, {}) == {}


def test_a_topic_that_is_gone_before_the_cut_ends_where_it_was_read(
    catalog: Catalog, watch: SourceHeadWatch
) -> None:
    def gone(topics: Sequence[str]) -> dict[tuple[str, int], int]:
        raise UnknownTopic("a")

    watch.fresh()
    catalog.cuts = gone
    assert watch.at_a_cut({A0: 3}, {A0: Bounds(1, 5)}) == {A0: Bounds(1, 3)}


def test_a_topic_that_is_new_before_the_cut_is_in_it(
    network: Network, catalog: Catalog, watch: SourceHeadWatch
) -> None:
    """Topics are looked up once a second, and a transaction may have sent to one that came since."""
    found = dict(watch.fresh())
    network.ends["c", 0] = 9
    catalog.cuts = lambda topics: {(topic, 0): network.ends[topic, 0] for topic in topics}
    assert watch.at_a_cut({A0: 3, B0: 6}, found) == {
        A0: Bounds(0, 5), B0: Bounds(0, 7), ("c", 0): Bounds(0, 9),
    }  # fmt: skip
