"""The lag of consumer groups while a broker group is away: those that need it keep their last values."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.actors.admin.group_offsets import describe_groups
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.client.router import Router
from escrowmq.cluster.exporter import looking as looking
from escrowmq.cluster.exporter.findings import Found
from escrowmq.cluster.exporter.looking import FoundLags, Lags
from escrowmq.cluster.exporter.series import Series
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.model import NO_ID
from tests.support.brokers import Brokers, ClientCalls

HERE, OVER, AWAY, SHARES = "d", "f", "c", "h"
#: So many consumer groups need the broker group that is away that they are asked for in several portions.
MANY = [f"many-{'x' * n}" for n in range(40)]


class Looking:
    """Two broker groups. ``HERE`` needs group 0 alone; ``OVER`` reads from group 1 as well; group 1
    coordinates ``AWAY``; and both have a part of ``SHARES``."""

    def __init__(self, path: Path) -> None:
        self.brokers = Brokers(path, 2, replicas=1)
        self.router = Router(self.brokers.info, calls=ClientCalls(self.brokers))
        self.clock = itertools.count(1_000)
        self.lags = Lags(self.router, lambda: float(next(self.clock)), timeout_s=1.0)
        for topic, first in (("t0", 0), ("t1", 1)):
            self.brokers.topic(topic, first=first)
            self.brokers.produce(topic, 0, [b"x"] * 5)
        reads = [(HERE, "t0"), (OVER, "t0"), (OVER, "t1"), (AWAY, "t0"), *((many, "t1") for many in MANY)]
        for group, topic in reads:
            submit = self.brokers.groups[coordinator_group(group, 2)].submit
            assert submit(ops.group_offsets(group, topic, {0: 1})) == [[0]]
        for each in self.brokers.groups:
            each.submit(share_ops.group_settings(SHARES, {"kind": "share"}))
        self.brokers.groups[0].submit(share_ops.share_create(SHARES, "t0", 0, "earliest", NO_ID))

    def look(self) -> FoundLags:
        return self.lags.look()

    def close(self) -> None:
        self.router.close()
        self.brokers.close()


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Looking]:
    made = Looking(tmp_path)
    yield made
    made.close()


def test_only_those_that_need_the_one_that_is_away_keep_their_last_values(seen: Looking) -> None:
    assert [coordinator_group(name, 2) for name in (HERE, OVER, AWAY, SHARES)] == [0, 0, 1, 0]
    before = seen.look()
    assert before.lag[HERE, "t0"] == before.lag[AWAY, "t0"] == before.lag[OVER, "t1"] == 4
    assert before.lag[SHARES, "t0"] == 5 and before.lag_at == {0: 1_000.0, 1: 1_000.0}
    seen.brokers.silent.add((1, 0))
    seen.brokers.produce("t0", 0, [b"x"] * 3)
    began = time.monotonic()
    found = seen.look()
    assert time.monotonic() - began < 8.0, "it was waited for a few times, not once for each group"
    assert found.lag == before.lag | {(HERE, "t0"): 7}
    assert found.shares == before.shares
    assert found.lag_at == before.lag_at, "some of each coordinator's are not known"
    seen.brokers.silent.clear()
    again = seen.look()
    assert again.lag[AWAY, "t0"] == again.lag[OVER, "t0"] == 7 and again.lag[SHARES, "t0"] == 8
    assert again.lag_at == {0: 1_002.0, 1: 1_002.0}


def test_when_it_was_found_is_a_series_of_each_coordinator() -> None:
    series = Series().of(Found(2_000.0, 0.1, {}, lag_at={0: 1_000.0, 1: 1_990.0}))
    name = "escrowmq_exporter_lag_timestamp_seconds"
    assert (series[name, ("0",)], series[name, ("1",)]) == (1_000.0, 1_990.0)


def test_planted_all_or_nothing_is_found(seen: Looking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "describe_each", describe_groups)
    seen.look()
    seen.brokers.silent.add((1, 0))
    with pytest.raises(Unavailable):
        seen.look()


def test_a_group_that_is_no_longer_listed_is_forgotten(seen: Looking) -> None:
    assert (HERE, "t0") in seen.look().lag
    assert seen.brokers.groups[0].submit(ops.delete_group(HERE, 1 << 40)) == [[0]]
    assert (HERE, "t0") not in seen.look().lag
