"""The benchmark around the database, on real PostgreSQL and a broker in memory: it measures all that it
shows, and notices a message that is lost or sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks.around_database import by_hand, measuring
from benchmarks.around_database.__main__ import ARRIVING, THREADS, opened, tables
from benchmarks.around_database.ways import Alone, ByHand, Place
from escrowmq.testing import InMemoryCluster
from tests.support.database_servers import running

#: No more than a consumer asks for at a time: in memory a fetch that finds nothing lasts half a minute.
PARTITIONS = 2


@pytest.fixture(scope="module")
def engine() -> Iterator[sa.Engine]:
    with running("postgresql", durable=True) as server:
        made = sa.create_engine(server.url(), pool_size=20)
        yield made
        made.dispose()


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        yield made


def test_a_round_measures_all_that_the_tables_show(engine: sa.Engine, cluster: InMemoryCluster) -> None:
    said: list[str] = []
    with opened(engine, cluster, said.append, PARTITIONS) as run:
        run.warm(0.05)
        run.round(0, 0.3, rows=50)
    assert len(said) == 1
    one = {name: found["statements"] for name, found in run.figures.items() if "statements" in found}
    alone, fence, outbox, plain = one.values()
    assert alone == [1.0] and outbox == plain == [2.0], "each costs one statement more"
    assert fence == [3.0], "its row is written, and on PostgreSQL read again before COMMIT"
    for name, found in run.figures.items():
        if name != run.ways[0].name:
            assert all(found[f"{p}_ms at {at}"][0] > 0 for at in ARRIVING for p in ("p50", "p99")), name
    for way in run.ways:
        assert all(run.figures[way.name][f"per_s_{threads}"][0] > 0 for threads in THREADS)
    shown = tables(run)
    assert all(f"| {name} |" in shown for name in run.figures) and "nan" not in shown
    assert all(way.gives in shown for way in run.ways)


class Lossy(ByHand):
    """Inserts no row for the relay."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._alone = Alone(place)

    def commit(self) -> tuple[int, float]:
        return self._alone.commit()


def by_hand_in(
    engine: sa.Engine, cluster: Any, kind: type[ByHand] = ByHand
) -> tuple[ByHand, measuring.Reader]:
    cluster.admin.create_topic("by-hand", partitions=PARTITIONS)
    with engine.begin() as db:
        db.execute(sa.text("drop table if exists by_hand, orders"))
    way = kind(Place(engine, cluster))
    return way, measuring.Reader(cluster, way.topic, catch_up_s=0.3 if kind is Lossy else 60.0)


def test_a_message_that_is_sent_twice_ends_the_measurement(
    engine: sa.Engine, cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = sa.text("delete from by_hand where id < 0 and id = any(:ids)")
    monkeypatch.setattr(by_hand, "_DELETE", nothing)
    way, reader = by_hand_in(engine, cluster)
    with pytest.raises(AssertionError, match="sent twice"):
        measuring.delays(way, reader, measuring.Counted(), 100.0, 1, 0.3, 1)
    reader.close()
    way.close()


def test_a_message_that_is_lost_ends_the_measurement(engine: sa.Engine, cluster: InMemoryCluster) -> None:
    way, reader = by_hand_in(engine, cluster, Lossy)
    with pytest.raises(AssertionError, match="0 of"):
        measuring.rate(way, reader, measuring.Counted(), 1, 0.1)
    reader.close()
    way.close()


def test_a_reader_that_waits_for_its_turn_stays_in_its_group(
    engine: sa.Engine, cluster: InMemoryCluster
) -> None:
    """Each way is measured while the others' readers wait. In memory a poll that finds nothing moves the
    clock, so that they wait for hours by it."""
    way, reader = by_hand_in(engine, cluster)
    counted = measuring.Counted()
    measuring.rate(way, reader, counted, 1, 0.05)
    cluster.clock.advance(3600.0)
    measuring.rate(way, reader, counted, 1, 0.05)
    reader.close()
    way.close()
