"""The end of an epoch on the driver: commits it exactly once, however often Spark asks for it.

1. If the epoch has an intent, written by this query for exactly this batch, an earlier run got this far: the
   chunks of the intent are the epoch, and the new ones are rolled back. Otherwise all new chunks must still
   be open, and the intent is written.
2. One COMMIT per broker group names all chunks of the intent: it is one log entry, so all or none.
3. Every other open transaction of the query up to this epoch is a leftover of a dead or superseded attempt
   and is rolled back. This must not happen before the intent exists, because until then it is not decided
   which attempts win.

A missing answer never decides anything: this module raises, Spark ends the query, and the next run either
finds the intent or does not.
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

#: Limits for one epoch in one broker group: chunks, and log positions that their COMMIT names. The leader
#: does nothing else while it writes and applies them: 0.2 s of CPU for this many (measured). An election
#: starts after 0.3 s.
CHUNKS_MAX = 10_000
REFERENCES_MAX = 100_000


class EpochConflict(TransactionConflict):
    """An epoch cannot be committed as a whole, because a part of it was rolled back."""

    def __init__(self, epoch_id: str, tx_id: str, recorded_state: str) -> None:
        super().__init__(tx_id, recorded_state)
        self.args = (epoch_id, tx_id, recorded_state)
        self.epoch_id = epoch_id

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch_id!r} cannot be committed: its part {self.tx_id!r} is recorded as "
            f"{self.recorded_state} (by an operator, a topic's policy, or another run of this query). If the "
            "epoch has no intent in the checkpoint yet, restart the query, which writes it again; otherwise "
            "settle it first: python -m escrowmq.spark_integration.sink_resolve --help"
        )


class EpochReplanned(EpochConflict):
    """An epoch's intent belongs to another batch than the one that Spark now plans under the same number."""

    def __init__(self, epoch_id: str, intent: str, planned: str, checkpoint: str) -> None:
        super().__init__(epoch_id, epoch_id, "planned again")
        self.args = (epoch_id, intent, planned, checkpoint)

    def __str__(self) -> str:
        epoch_id, intent, planned, checkpoint = self.args
        return (
            f"epoch {epoch_id!r} was decided ({intent}) for other offsets than {planned} has now: Spark's "
            "offset log was rewound, or lost its end, and the batch was planned again. The rows between the "
            f"two would never be written. Restore {planned} from a copy of the checkpoint. Without a copy, "
            "stop the query and run python -m escrowmq.spark_integration.sink_resolve "
            f"{checkpoint} --discard {epoch_of(epoch_id)}: if nothing of the earlier batch is committed, it "
            "is given up, and the query writes the new one. If that is refused, the earlier batch is already "
            "readable: start the query after it with a new checkpoint, or delete the intent, which writes "
            "its rows twice"
        )


def commit_epoch(
    store: IntentStore,
    link: SinkLink,
    query_id: str,
    epoch: int,
    attempts: Sequence[Attempt],
    references: Sequence[Mapping[int, int]] = (),
) -> Intent:
    """Make all of the epoch readable, once; returns what was committed. It may be repeated.

    Raises EpochConflict, EpochReplanned; ConfigError for a checkpoint or an intent of another query;
    MessageTooLarge for an epoch that is too large for one operation; and the errors of the link when its
    patience ends.
    """
    check_checkpoint(store, query_id)
    intent, fresh = store.read(epoch), False
    if intent is None:
        for other in store.epochs() if epoch == 0 else ():  # at once, not only when the query gets that far
            if (found := store.read(other)) is not None:
                require_own(store, query_id, found)
        mine = Intent(epoch, epoch_id_of(query_id, epoch), tuple(attempts), store.offsets_digest(epoch))
        check_size(mine.epoch_id, mine.ids(), references)
        try:
            _require_open(link, mine)
        except EpochConflict:
            intent = store.read(epoch)  # perhaps another driver wrote it and rolled ours back as leftovers
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
    """Raise ConfigError unless the directory to write to is the checkpoint of this query."""
    found = store.query_id()
    if found != query_id:
        raise ConfigError(
            f"{store.checkpoint!r} is the checkpoint of query {found}, not of {query_id}; if Spark reads it "
            "from its default file system, give option 'checkpointLocation' as a full URI (hdfs://host/...)"
        )


def require_own(store: IntentStore, query_id: str, intent: Intent) -> None:
    """Raise ConfigError if an intent belongs to another query.

    Its chunks are unknown under this query's app, so it would count as committed long ago, and the rows of
    this epoch would be lost.
    """
    if intent.epoch_id != epoch_id_of(query_id, intent.epoch):
        other = query_of(intent.epoch_id)
        raise ConfigError(
            f"{store.path_of(intent.epoch)} belongs to query {other}, not to {query_id}: Spark's part of the "
            "checkpoint was removed or replaced, but the sink's was not. Settle what the former query left "
            f"(escrowmq txn list --app {app_of(other)}), then delete the directory {store.base!r}, or give "
            "this query its own checkpointLocation"
        )


def require_this_batch(store: IntentStore, query_id: str, intent: Intent) -> None:
    """Raise ConfigError as :func:`require_own` does, and EpochReplanned if the intent belongs to another
    batch than the one that Spark has under this number, whose rows would then count as written."""
    require_own(store, query_id, intent)
    planned = store.offsets_digest(intent.epoch)
    if intent.offsets and planned and planned != intent.offsets:
        where = store.path_of(intent.epoch), f"{store.root}/offsets/{intent.epoch}"
        raise EpochReplanned(intent.epoch_id, *where, store.checkpoint)


def check_size(
    epoch_id: str, by_group: Mapping[int, Sequence[str]], references: Sequence[Mapping[int, int]]
) -> None:
    """Raise MessageTooLarge if an epoch is too large for one operation."""
    for gid, ids in by_group.items():
        count = sum(of_task.get(gid, 0) for of_task in references)
        if len(ids) > CHUNKS_MAX or count > REFERENCES_MAX:
            error = MessageTooLarge(len(ids), CHUNKS_MAX)
            error.add_note(
                f"{epoch_id}: {len(ids)} chunks and {count} references in group {gid} are more than one "
                f"operation can commit ({CHUNKS_MAX}, {REFERENCES_MAX}). Write less per batch (the source's "
                "maxOffsetsPerTrigger or maxBytesPerTrigger), or repartition() into fewer tasks"
            )
            raise error


def _require_open(link: SinkLink, intent: Intent) -> None:
    for gid, ids in intent.ids().items():
        require_open(link, gid, intent.epoch_id, ids)


def require_open(link: SinkLink, gid: int, epoch_id: str, ids: Sequence[str]) -> None:
    """Raise EpochConflict unless all of these transactions are open."""
    for tx_id, state in zip(ids, link.states(gid, ids) if ids else (), strict=True):
        if state != "PREPARE":
            raise EpochConflict(epoch_id, tx_id, state)


def carry_out(link: SinkLink, intent: Intent, *, checked: bool = False) -> None:
    """Commit the chunks that an intent names.

    Raises EpochConflict if a part of it was rolled back; unless that happens at this very moment, nothing is
    committed then. ``checked``: all chunks were open a moment ago.

    Brokers forget the ids of settled transactions after a while. If there is an intent, an unknown chunk
    counts as committed: it was settled, and only an operator could have rolled it back, against a warning.
    """
    by_group = intent.ids()
    for gid, ids in by_group.items() if len(by_group) > 1 and not checked else ():
        for tx_id, state in zip(ids, link.states(gid, ids), strict=True):
            if state == "ROLLBACK":
                raise EpochConflict(intent.epoch_id, tx_id, state)
    for gid, ids in by_group.items():
        commit_together(link, gid, intent.epoch_id, ids)


def commit_together(link: SinkLink, gid: int, epoch_id: str, ids: Sequence[str]) -> None:
    """Commit all of these, which were all open once, with one COMMIT. Raises EpochConflict, Unavailable."""
    problems = link.commit(gid, ids) if ids else {}
    for i, (code, recorded) in problems.items():
        if code == ResultCode.TX_CONFLICT:
            raise EpochConflict(epoch_id, ids[i], str(recorded))
    # If some are forgotten, they were committed together with all others; so then none may be open.
    forgotten = [i for i, problem in problems.items() if problem[0] == ResultCode.UNKNOWN_TX]
    if len(forgotten) < len(problems):
        if forgotten:
            raise EpochConflict(epoch_id, ids[forgotten[0]], "UNKNOWN")
        raise Unavailable(f"{epoch_id}: another decision about its parts is in progress", 1.0)


def clear_leftovers(link: SinkLink, epoch: int) -> int:
    """Roll back all open transactions of the query up to a committed epoch; returns their number."""
    count = 0
    for gid in range(link.info.groups):
        left = [tx for tx in link.open_ids(gid) if (of := epoch_of(tx)) is not None and of <= epoch]
        if left:
            log.info("rolling back %s leftovers of %s up to epoch %s", len(left), link.app, epoch)
            link.rollback(gid, left)
            count += len(left)
    return count


def abort_epoch(
    store: IntentStore, link: SinkLink, query_id: str, epoch: int, attempts: Sequence[Attempt]
) -> None:
    """Roll back what these attempts prepared, except chunks that an intent names.

    Those count as committed, whatever failed later. Chunks of other attempts are not touched: they may still
    win.
    """
    intent = store.read(epoch)
    winners = set() if intent is None else {attempt.name for attempt in intent.attempts}
    losers = tuple(attempt for attempt in attempts if attempt.name not in winners)
    for gid, ids in Intent(epoch, epoch_id_of(query_id, epoch), losers).ids().items():
        link.rollback(gid, ids)
