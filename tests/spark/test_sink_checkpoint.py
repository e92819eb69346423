"""What the sink makes of a checkpoint that is not as it left it: no row may be lost without a word."""

from __future__ import annotations

import pytest

from escrowmq.replication.errors import ConfigError
from escrowmq.spark_integration.sink_commit import abort_epoch, commit_epoch
from escrowmq.spark_integration.sink_intents import Intent, IntentStore, epoch_id_of
from escrowmq.spark_integration.sink_link import SinkLink
from escrowmq.spark_integration.sink_resolve import answer, resolve
from tests.actors.brokers import Brokers
from tests.spark.sinking import ROWS, batch, effect, linked, prepare, readable, still_open


def test_the_intent_of_another_query_is_not_taken_for_one_of_ours(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    """As after a deletion of Spark's files in a checkpoint that leaves the sink's there."""
    former = f"{query}-former"
    with linked(brokers, former) as gone:
        theirs = prepare(gone, former, 0, topic, [batch("theirs")])[0]
        left = store.create(Intent(0, epoch_id_of(former, 0), (theirs,)))
        ours = prepare(link, query, 0, topic, [batch(*ROWS)])[0]
        said = rf"0\.json is of query {former}, not of {query}.*txn list --app spark-{former}.*delete"
        with pytest.raises(ConfigError, match=said):
            commit_epoch(store, link, query, 0, [ours])
        assert readable(brokers, topic) == [] and store.read(0) == left
        epoch_id = epoch_id_of(query, 0)
        with pytest.raises(ConfigError, match=said):
            answer(store, link, next(iter(ours.ids(epoch_id).values()))[0], epoch_id)
        with pytest.raises(ConfigError, match=said):
            resolve(store, link, discard=0)
        abort_epoch(store, link, query, 0, [ours])
        found = resolve(store, link)
        assert (
            found.committed == [] and list(found.stuck) == [0] and f"is of query {former}" in found.stuck[0]
        )
        assert store.read(0) == left and still_open(brokers, former) > 0, "theirs is theirs"
    store.remove(0)  # what the error says
    again = prepare(link, query, 0, topic, [batch(*ROWS)])[0]
    commit_epoch(store, link, query, 0, [again])
    assert readable(brokers, topic) == effect(ROWS, f"spark:{query}:0")


def test_intents_of_another_query_are_noticed_at_the_first_epoch_and_not_hours_later(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    store.create(Intent(400, epoch_id_of("former", 400), ()))
    ours = prepare(link, query, 0, topic, [batch(*ROWS)])[0]
    with pytest.raises(ConfigError, match=r"400\.json is of query former"):
        commit_epoch(store, link, query, 0, [ours])
    assert store.epochs() == [400] and readable(brokers, topic) == []
