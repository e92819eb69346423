"""Epochs over real brokers, without Spark: one effect, whichever process dies or repeats a step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.router import result_of
from escrowmq.replication.errors import ConfigError, MessageTooLarge, UnknownTopic
from escrowmq.replication.format import ops
from escrowmq.spark_integration.sink.commit import (
    CHUNKS_MAX,
    EpochConflict,
    abort_epoch,
    carry_out,
    commit_epoch,
)
from escrowmq.spark_integration.sink.intents import Attempt, Intent, IntentStore, epoch_id_of
from escrowmq.spark_integration.sink.link import SinkLink
from escrowmq.spark_integration.sink.task import ChunkWriter
from tests.support.brokers import Brokers
from tests.support.places import by_name
from tests.support.sinking import PARTITIONS, ROWS, batch, effect, linked, prepare, readable, still_open


def test_an_epoch_is_readable_after_its_commit_and_not_before(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    tasks = [prepare(link, query, 0, topic, [batch(*ROWS[i::2])], task=i)[0] for i in range(2)]
    assert readable(brokers, topic) == [] and still_open(brokers, query) >= 2
    commit_epoch(store, link, query, 0, tasks)
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:0")
    assert still_open(brokers, query) == 0 and store.epochs() == [0]


def test_rows_go_where_the_topic_was_placed_and_not_where_its_name_says(
    brokers: Brokers, query: str, link: SinkLink, store: IntentStore
) -> None:
    groups = brokers.info.groups
    brokers.topic(query, PARTITIONS, first=(by_name(query, 0, groups) + 1) % groups)
    tasks = [prepare(link, query, 0, query, [batch(*ROWS[i::2])], task=i)[0] for i in range(2)]
    commit_epoch(store, link, query, 0, tasks)
    assert readable(brokers, query) == effect(ROWS, f"spark:{query}:0")
    assert brokers.group_number(query, 0) != by_name(query, 0, groups) or groups == 1


def test_a_re_run_epoch_and_a_late_first_run_have_one_effect(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    first = prepare(link, query, 5, topic, [batch(*ROWS)])[0]
    intent = commit_epoch(store, link, query, 5, [first])
    again = prepare(link, query, 5, topic, [batch(*ROWS, "more")])[0]
    assert commit_epoch(store, link, query, 5, [again]) == intent
    assert commit_epoch(store, link, query, 5, [first]) == intent
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:5")
    assert still_open(brokers, query) == 0


def test_a_driver_that_died_after_its_intent_is_finished_by_the_next(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    died = prepare(link, query, 1, topic, [batch(*ROWS)])[0]
    store.create(Intent(1, epoch_id_of(query, 1), (died,)))
    assert readable(brokers, topic) == []
    again = prepare(link, query, 1, topic, [batch(*ROWS)])[0]
    commit_epoch(store, link, query, 1, [again])
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:1")
    assert still_open(brokers, query) == 0


def test_two_drivers_at_the_same_moment_have_one_effect(
    brokers: Brokers, query: str, topic: str, store: IntentStore
) -> None:
    start = threading.Barrier(4)
    committed: list[Intent] = []

    def drive(number: int) -> None:
        with linked(brokers, query) as own:
            prepared = prepare(own, query, 3, topic, [batch(*ROWS)], task=number)[0]
            start.wait()
            committed.append(commit_epoch(IntentStore(store.checkpoint), own, query, 3, [prepared]))

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:3")
    assert still_open(brokers, query) == 0 and committed == [committed[0]] * 4


def test_leftovers_up_to_this_epoch_are_rolled_back_and_later_ones_left(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    prepare(link, query, 7, topic, [batch("dead attempt of this epoch")])
    prepare(link, query, 6, topic, [batch("dead attempt of an earlier one")])
    later = prepare(link, query, 8, topic, [batch("next")])[0]
    winner = prepare(link, query, 7, topic, [batch(*ROWS)])[0]
    commit_epoch(store, link, query, 7, [winner])
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:7")
    assert still_open(brokers, query) == sum(later.chunks.values())


def test_nothing_is_written_if_a_part_was_rolled_back_before_the_intent(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    one, two = (prepare(link, query, 2, topic, [batch(*ROWS[i::2])], task=i)[0] for i in range(2))
    gid, ids = next(iter(two.ids(epoch_id_of(query, 2)).items()))
    link.rollback(gid, ids)
    with pytest.raises(EpochConflict, match="recorded as ROLLBACK"):
        commit_epoch(store, link, query, 2, [one, two])
    assert store.epochs() == [] and readable(brokers, topic) == []
    abort_epoch(store, link, query, 2, [one, two])
    assert still_open(brokers, query) == 0
    again = prepare(link, query, 2, topic, [batch(*ROWS)])[0]
    commit_epoch(store, link, query, 2, [again])
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:2")


def test_no_part_of_a_group_is_committed_if_one_was_rolled_back_after_the_intent(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    one, two = (prepare(link, query, 2, topic, [batch(*ROWS[i::2])], task=i)[0] for i in range(2))
    intent = store.create(Intent(2, epoch_id_of(query, 2), (one, two)))
    for gid, ids in two.ids(epoch_id_of(query, 2)).items():
        link.rollback(gid, ids)
    with pytest.raises(EpochConflict, match="sink_resolve"):
        carry_out(link, intent)
    assert readable(brokers, topic) == []


def test_abort_rolls_back_what_it_was_told_but_never_what_an_intent_names(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    one, two = (prepare(link, query, 4, topic, [batch(*ROWS[i::2])], task=i)[0] for i in range(2))
    store.create(Intent(4, epoch_id_of(query, 4), (one,)))
    abort_epoch(store, link, query, 4, [one, two])
    assert still_open(brokers, query) == sum(one.chunks.values())
    commit_epoch(store, link, query, 4, [])
    assert readable(brokers, topic) == effect(ROWS[0::2], f"spark:{query}:4")


def test_what_brokers_have_forgotten_counts_as_committed_by_its_intent(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    store.create(Intent(9, epoch_id_of(query, 9), (Attempt("0.0.gone", {0: 3}),)))
    again = prepare(link, query, 9, topic, [batch(*ROWS)])[0]
    commit_epoch(store, link, query, 9, [again])
    assert readable(brokers, topic) == [] and still_open(brokers, query) == 0


def test_an_empty_epoch_and_one_that_is_too_large(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    empty = prepare(link, query, 0, topic, [batch()])[0]
    assert empty.chunks == {}
    commit_epoch(store, link, query, 0, [empty])
    with pytest.raises(MessageTooLarge) as caught:
        commit_epoch(store, link, query, 1, [Attempt("0.0.big", {0: CHUNKS_MAX + 1})])
    assert "maxOffsetsPerTrigger" in caught.value.__notes__[0] and store.epochs() == [0]


def test_the_checkpoint_of_another_query_is_refused(query: str, link: SinkLink, store: IntentStore) -> None:
    with pytest.raises(ConfigError, match=f"checkpoint of query {query}, not of other"):
        commit_epoch(store, link, "other", 0, [])


def chunks_and_an_error(before: Callable[[], None] = lambda: None) -> Iterator[pa.RecordBatch]:
    """Rows for several chunks; then the task fails."""
    for _ in range(12):
        yield pa.RecordBatch.from_arrays([pa.array([b"x" * 300_000] * 4)], names=["value"])
    before()
    raise ValueError("the task's own")


def test_a_task_that_fails_takes_its_chunks_back(
    brokers: Brokers, query: str, topic: str, link: SinkLink
) -> None:
    def until_one_is_open() -> None:
        deadline = time.monotonic() + 20
        while not still_open(brokers, query):
            assert time.monotonic() < deadline

    with pytest.raises(ValueError, match="own"):
        prepare(link, query, 0, topic, chunks_and_an_error(until_one_is_open))
    assert still_open(brokers, query) == 0 and readable(brokers, topic) == []


class SlowPrepares(SinkLink):
    """Large requests are a second longer on their way than small ones."""

    def __init__(self, link: SinkLink) -> None:
        super().__init__(link.router, link.app)
        self.late: list[threading.Timer] = []

    def start(self, gid: int, request: bytes) -> Future[Any]:
        if len(request) < 1 << 20:
            return super().start(gid, request)
        answer: Future[Any] = Future()

        def send() -> None:
            answer.set_result(result_of(super(SlowPrepares, self).start(gid, request), 30.0))

        self.late.append(threading.Timer(1.0, send))
        self.late[-1].start()
        return answer


def test_a_roll_back_waits_for_what_is_on_its_way(
    brokers: Brokers, query: str, topic: str, link: SinkLink
) -> None:
    slow = SlowPrepares(link)
    with pytest.raises(ValueError, match="own"):
        prepare(slow, query, 0, topic, chunks_and_an_error())
    for timer in slow.late:
        timer.join()
    assert len(slow.late) >= 2 and still_open(brokers, query) == 0 and readable(brokers, topic) == []


def test_a_topic_deleted_meanwhile_fails_the_task(brokers: Brokers, query: str, link: SinkLink) -> None:
    with pytest.raises(UnknownTopic, match="never-made"):
        prepare(link, query, 0, "never-made", [batch("x")])
    assert still_open(brokers, query) == 0


def test_many_chunks_keep_the_order_of_rows(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    writer_batches = [batch(*(f"{i:03}-{j:04}" for j in range(500))) for i in range(20)]
    attempt, references = prepare_small(link, query, topic, writer_batches)
    assert sum(attempt.chunks.values()) > 20 and sum(references.values()) >= sum(attempt.chunks.values())
    commit_epoch(store, link, query, 0, [attempt], [references])
    found = [value for value, _ in readable(brokers, topic)]
    assert found == sorted(value for b in writer_batches for value in b.column("value").to_pylist())


def prepare_small(
    link: SinkLink, query: str, topic: str, batches: list[pa.RecordBatch]
) -> tuple[Attempt, dict[int, int]]:
    """As tasks do, but with chunks of 10 KB."""
    from escrowmq.spark_integration.sink.task import RowEncoder

    epoch_id = epoch_id_of(query, 0)
    writer = ChunkWriter(link, epoch_id, "0.0.small", timeout_ms=60_000, chunk_bytes=10_000)
    encoder = RowEncoder(epoch_id, topic, TopicCatalog(link.router).partitions, 1 << 20, 5_000)
    for each in batches:
        for rows in encoder.encode(each):
            writer.add(rows)
    return writer.finish(), writer.references


def test_operations_over_ids_that_nobody_knows_are_refused_whole(
    brokers: Brokers, query: str, topic: str, link: SinkLink
) -> None:
    attempt = prepare(link, query, 0, topic, [batch(*ROWS)])[0]
    for gid, ids in attempt.ids(epoch_id_of(query, 0)).items():
        assert set(link.commit(gid, [*ids, "nobody"])) == set(range(len(ids) + 1))
        (result,) = brokers.groups[gid].submit(ops.commit(link.app, [*ids, "nobody"], together=True))
        assert result[0] == 1
    assert readable(brokers, topic) == []
