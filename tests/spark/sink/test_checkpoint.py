"""What the sink makes of a checkpoint that is not as it left it: no row may be lost without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.replication.errors import ConfigError, TransactionConflict
from escrowmq.spark_integration.sink.commit import EpochConflict, abort_epoch, commit_epoch
from escrowmq.spark_integration.sink.intents import Attempt, Intent, IntentStore, decode, encode, epoch_id_of
from escrowmq.spark_integration.sink.link import SinkLink
from escrowmq.spark_integration.sink.settling import answer, resolve
from tests.support.brokers import Brokers
from tests.support.sinking import ROWS, batch, effect, linked, prepare, readable, still_open


def test_the_intent_of_another_query_is_not_taken_for_one_of_ours(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    """As after a deletion of Spark's files in a checkpoint that leaves the sink's there."""
    former = f"{query}-former"
    with linked(brokers, former) as gone:
        theirs = prepare(gone, former, 0, topic, [batch("theirs")])[0]
        left = store.create(Intent(0, epoch_id_of(former, 0), (theirs,)))
        ours = prepare(link, query, 0, topic, [batch(*ROWS)])[0]
        said = rf"0\.json belongs to query {former}, not to {query}.*txn list --app spark-{former}.*delete"
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
            found.committed == []
            and list(found.stuck) == [0]
            and f"belongs to query {former}" in found.stuck[0]
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
    with pytest.raises(ConfigError, match=r"400\.json belongs to query former"):
        commit_epoch(store, link, query, 0, [ours])
    assert store.epochs() == [400] and readable(brokers, topic) == []


# ------------------------------------------------------------------ Spark's offset log


def plan(store: IntentStore, epoch: int, offsets: str) -> None:
    """As Spark notes what a batch reads, before it runs."""
    path = Path(store.checkpoint) / "offsets" / str(epoch)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'v1\n{{"batchWatermarkMs":0}}\n{offsets}')


@pytest.mark.parametrize("decided", ["intent", "commit"])
def test_an_intent_of_a_batch_that_was_planned_anew_does_not_stand_in_for_it(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore, decided: str
) -> None:
    """As after a power cut that Spark's offset log did not survive, or when it is rewound by hand."""
    epoch_id = epoch_id_of(query, 7)
    plan(store, 7, "0 to 40")
    first = prepare(link, query, 7, topic, [batch(*ROWS)])[0]
    if decided == "commit":
        commit_epoch(store, link, query, 7, [first])
    else:
        store.create(Intent(7, epoch_id, (first,), store.offsets_digest(7)))
    plan(store, 7, "0 to 41")
    again = prepare(link, query, 7, topic, [batch(*ROWS, "more")])[0]
    said = r"(?s)other offsets than .*offsets/7.* has now.*sink_resolve .* --discard 7"
    with pytest.raises(EpochConflict, match=said):
        commit_epoch(store, link, query, 7, [again])
    with pytest.raises(EpochConflict, match=said):
        answer(store, link, first.ids(epoch_id)[min(first.chunks)][0], epoch_id)
    abort_epoch(store, link, query, 7, [again])
    assert list(resolve(store, link).stuck) == [7]
    assert readable(brokers, topic) == (effect(ROWS, epoch_id) if decided == "commit" else [])
    if decided == "commit":
        with pytest.raises(TransactionConflict, match="COMMITTED"):
            resolve(store, link, discard=7)
        plan(store, 7, "0 to 40")  # restored from a copy of the checkpoint
        commit_epoch(store, link, query, 7, [prepare(link, query, 7, topic, [batch(*ROWS)])[0]])
        assert readable(brokers, topic) == effect(ROWS, epoch_id)
    else:
        resolve(store, link, discard=7)
        more = prepare(link, query, 7, topic, [batch(*ROWS, "more")])[0]
        commit_epoch(store, link, query, 7, [more])
        assert readable(brokers, topic) == effect([*ROWS, "more"], epoch_id)
    assert still_open(brokers, query) == 0


def test_an_intent_is_carried_out_where_nobody_can_say_what_its_batch_read(
    brokers: Brokers, query: str, topic: str, link: SinkLink, store: IntentStore
) -> None:
    """Its planner could not read the offset log, or it cannot be read from here."""
    plan(store, 3, "0 to 40")
    older = prepare(link, query, 3, topic, [batch(*ROWS)])[0]
    store.create(Intent(3, epoch_id_of(query, 3), (older,)))
    commit_epoch(store, link, query, 3, [])
    unseen = prepare(link, query, 4, topic, [batch("unseen")])[0]
    store.create(Intent(4, epoch_id_of(query, 4), (unseen,), "0" * 64))
    commit_epoch(store, link, query, 4, [])
    (Path(store.checkpoint) / "offsets" / "5").mkdir()
    assert store.offsets_digest(5) == store.offsets_digest(6) == ""
    wanted = effect(ROWS, epoch_id_of(query, 3)) + effect(["unseen"], epoch_id_of(query, 4))
    assert readable(brokers, topic) == sorted(wanted)


def test_an_epoch_that_brokers_have_forgotten_cannot_be_discarded(
    query: str, link: SinkLink, store: IntentStore
) -> None:
    """It was committed: what is forgotten was settled, and nobody settles an intent otherwise."""
    store.create(Intent(2, epoch_id_of(query, 2), (Attempt("0.0.gone", {0: 2}),)))
    with pytest.raises(TransactionConflict, match="UNKNOWN"):
        resolve(store, link, discard=2)
    assert store.epochs() == [2]


def test_an_intent_without_offsets_is_written_as_it_always_was() -> None:
    old = (
        b'{"crc32c": 1989621149, "intent": {"attempts": [["0.0.ab", {"0": 2, "1": 1}]], "epoch": 3, '
        b'"epoch_id": "spark:q:3", "version": 1}}\n'
    )
    intent = Intent(3, "spark:q:3", (Attempt("0.0.ab", {0: 2, 1: 1}),))
    assert encode(intent) == old and decode(old, "it") == intent
    noted = Intent(3, "spark:q:3", intent.attempts, "ab" * 32)
    assert decode(encode(noted), "it") == noted
