"""What the driver does at the end of an epoch: commit it once, however often it is asked to.

1. If the epoch has an intent, of this query and of this very batch, a run before this one came so far: its
   chunks are the epoch, ours are rolled back. Else all of ours must still be open, and the intent is
   written.
2. One COMMIT per broker group names all chunks of the intent: one entry of the log, all or none.
3. Every other open transaction of the query up to this epoch is a leftover of a dead or superseded
   attempt, and is rolled back. Never before the intent is there: until then nobody knows who wins.

Nothing here decides by silence: without an answer it raises, Spark ends the query, and the next run finds
the intent, or none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from escrowmq.replication.errors import ConfigError, MessageTooLarge, TransactionConflict, Unavailable
from escrowmq.replication.model import ResultCode
from escrowmq.spark_integration.sink.intents import (
    Attempt,
    Intent,
    IntentStore,
    app_of,
    epoch_id_of,
    epoch_of,
    query_of,
)
from escrowmq.spark_integration.sink.link import SinkLink

log = logging.getLogger(__name__)

#: Chunks, and places in the log that their COMMIT names, of one epoch in one broker group. The leader does
#: nothing else while it writes and applies them: 0.2 s of CPU for so many (measured), an election takes 0.3.
CHUNKS_MAX = 10_000
REFERENCES_MAX = 100_000


class EpochConflict(TransactionConflict):
    """An epoch cannot be committed as a whole: somebody rolled back a part of it."""

    def __init__(self, epoch_id: str, tx_id: str, recorded_state: str) -> None:
        super().__init__(tx_id, recorded_state)
        self.args = (epoch_id, tx_id, recorded_state)
        self.epoch_id = epoch_id

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch_id!r} cannot be committed: its part {self.tx_id!r} is recorded as "
            f"{self.recorded_state} (by an operator, a topic's policy, or another run of this query). If the "
            "epoch has no intent in the checkpoint yet, restarting the query writes it again; else settle it "
            "first: python -m escrowmq.spark_integration.sink_resolve --help"
        )


class EpochReplanned(EpochConflict):
    """An epoch's intent is of another batch than the one that Spark plans under the same number now."""

    def __init__(self, epoch_id: str, intent: str, planned: str, checkpoint: str) -> None:
        super().__init__(epoch_id, epoch_id, "planned anew")
        self.args = (epoch_id, intent, planned, checkpoint)

    def __str__(self) -> str:
        epoch_id, intent, planned, checkpoint = self.args
        return (
            f"epoch {epoch_id!r} was decided ({intent}) for other offsets than {planned} says now: Spark's "
            "offset log was rewound, or lost its end, and the batch was planned anew. Rows between the two "
            f"would never be written. Restore {planned} from a copy of the checkpoint. Without one, stop the "
            f"query and run python -m escrowmq.spark_integration.sink_resolve {checkpoint} --discard "
            f"{epoch_of(epoch_id)}: if nothing of the earlier batch is committed, it is given up, and the "
            "query writes the new one. If that is refused, the earlier batch can be read already: start the "
            "query after it with a checkpoint of its own, or delete the intent, which writes its rows twice"
        )


def commit_epoch(
    store: IntentStore,
    link: SinkLink,
    query_id: str,
    epoch: int,
    attempts: Sequence[Attempt],
    references: Sequence[Mapping[int, int]] = (),
) -> Intent:
    """Make the epoch readable, all of it, once; returns what was committed. May be repeated at will.

    Raises EpochConflict, EpochReplanned; ConfigError for a checkpoint or an intent that is not this
    query's; MessageTooLarge for an epoch beyond what one operation can commit; and what the link raises
    when patience ends.
    """
    check_checkpoint(store, query_id)
    intent, fresh = store.read(epoch), False
    if intent is None:
        for other in store.epochs() if epoch == 0 else ():  # not only when this query comes that far
            if (found := store.read(other)) is not None:
                require_own(store, query_id, found)
        mine = Intent(epoch, epoch_id_of(query_id, epoch), tuple(attempts), store.offsets_digest(epoch))
        check_size(mine.epoch_id, mine.ids(), references)
        try:
            _require_open(link, mine)
        except EpochConflict:
            intent = store.read(epoch)  # written meanwhile by another driver, which took ours for leftovers?
            if intent is None:
                raise
        else:
            intent = store.create(mine)
            fresh = intent == mine
    require_this_batch(store, query_id, intent)
    carry_out(link, intent, checked=fresh)
    clear_leftovers(link, epoch)
    store.prune(epoch)
    return intent


def check_checkpoint(store: IntentStore, query_id: str) -> None:
    """Raise ConfigError unless Spark keeps this query's checkpoint where we are about to write."""
    found = store.query_id()
    if found != query_id:
        raise ConfigError(
            f"{store.checkpoint!r} is the checkpoint of query {found}, not of {query_id}; if Spark reads it "
            "from its default file system, give option 'checkpointLocation' as a whole URI (hdfs://host/...)"
        )


def require_own(store: IntentStore, query_id: str, intent: Intent) -> None:
    """Raise ConfigError if an intent is another query's. Nobody knows its chunks under this query's app, so
    it would count as committed long ago, and the epoch's rows as written."""
    if intent.epoch_id != epoch_id_of(query_id, intent.epoch):
        other = query_of(intent.epoch_id)
        raise ConfigError(
            f"{store.path_of(intent.epoch)} is of query {other}, not of {query_id}: Spark's part of the "
            "checkpoint was removed or replaced, and the sink's was not. Settle what the former query left "
            f"(escrowmq txn list --app {app_of(other)}), then delete the directory {store.base!r}, or give "
            "this query a checkpointLocation of its own"
        )


def require_this_batch(store: IntentStore, query_id: str, intent: Intent) -> None:
    """Raise ConfigError as :func:`require_own`; EpochReplanned if the intent is not of the batch that Spark
    has under this number, whose rows would be taken for written."""
    require_own(store, query_id, intent)
    planned = store.offsets_digest(intent.epoch)
    if intent.offsets and planned and planned != intent.offsets:
        where = store.path_of(intent.epoch), f"{store.root}/offsets/{intent.epoch}"
        raise EpochReplanned(intent.epoch_id, *where, store.checkpoint)


def check_size(
    epoch_id: str, by_group: Mapping[int, Sequence[str]], references: Sequence[Mapping[int, int]]
) -> None:
    """Raise MessageTooLarge if an epoch is more than one operation can commit."""
    for gid, ids in by_group.items():
        places = sum(of_task.get(gid, 0) for of_task in references)
        if len(ids) > CHUNKS_MAX or places > REFERENCES_MAX:
            error = MessageTooLarge(len(ids), CHUNKS_MAX)
            error.add_note(
                f"{epoch_id}: {len(ids)} chunks and {places} references in group {gid} are more than one "
                f"operation commits ({CHUNKS_MAX}, {REFERENCES_MAX}). Write less at a time (the source's "
                "maxOffsetsPerTrigger or maxBytesPerTrigger), or repartition() into fewer tasks"
            )
            raise error


def _require_open(link: SinkLink, intent: Intent) -> None:
    for gid, ids in intent.ids().items():
        require_open(link, gid, intent.epoch_id, ids)


def require_open(link: SinkLink, gid: int, epoch_id: str, ids: Sequence[str]) -> None:
    """Raise EpochConflict unless all of these are open."""
    for tx_id, state in zip(ids, link.states(gid, ids) if ids else (), strict=True):
        if state != "PREPARE":
            raise EpochConflict(epoch_id, tx_id, state)


def carry_out(link: SinkLink, intent: Intent, *, checked: bool = False) -> None:
    """Commit what an intent names. Raises EpochConflict if a part of it was rolled back: before anything is
    committed, unless that happens at this moment. ``checked``: all of it was open a moment ago.

    Brokers forget settled ids after a while. With an intent, a chunk that nobody knows was committed: only
    then is it settled, and its having been rolled back is what an operator was warned of.
    """
    by_group = intent.ids()
    for gid, ids in by_group.items() if len(by_group) > 1 and not checked else ():
        for tx_id, state in zip(ids, link.states(gid, ids), strict=True):
            if state == "ROLLBACK":
                raise EpochConflict(intent.epoch_id, tx_id, state)
    for gid, ids in by_group.items():
        commit_together(link, gid, intent.epoch_id, ids)


def commit_together(link: SinkLink, gid: int, epoch_id: str, ids: Sequence[str]) -> None:
    """One COMMIT over all of these, which were all open once. Raises EpochConflict, Unavailable."""
    problems = link.commit(gid, ids) if ids else {}
    for place, (code, recorded) in problems.items():
        if code == ResultCode.TX_CONFLICT:
            raise EpochConflict(epoch_id, ids[place], str(recorded))
    # If some are forgotten, they were committed with all others; then none is open.
    forgotten = [place for place, problem in problems.items() if problem[0] == ResultCode.UNKNOWN_TX]
    if len(forgotten) < len(problems):
        if forgotten:
            raise EpochConflict(epoch_id, ids[forgotten[0]], "UNKNOWN")
        raise Unavailable(f"{epoch_id}: another decision over its parts is under way", 1.0)


def clear_leftovers(link: SinkLink, epoch: int) -> int:
    """Roll back all open transactions of the query up to an epoch that is committed; returns how many."""
    count = 0
    for gid in range(link.info.groups):
        left = [tx for tx in link.open_ids(gid) if (of := epoch_of(tx)) is not None and of <= epoch]
        if left:
            log.info("%s leftovers of %s up to epoch %s are rolled back", len(left), link.app, epoch)
            link.rollback(gid, left)
            count += len(left)
    return count


def abort_epoch(
    store: IntentStore, link: SinkLink, query_id: str, epoch: int, attempts: Sequence[Attempt]
) -> None:
    """Roll back what these attempts prepared, but for what an intent names: that is committed, whatever
    failed after it. Chunks of others are not touched: they may be about to win."""
    intent = store.read(epoch)
    winners = set() if intent is None else {attempt.name for attempt in intent.attempts}
    losers = tuple(attempt for attempt in attempts if attempt.name not in winners)
    for gid, ids in Intent(epoch, epoch_id_of(query_id, epoch), losers).ids().items():
        link.rollback(gid, ids)
