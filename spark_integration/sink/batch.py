"""Commits a batch write, which has no checkpoint: the decision is one log entry in one broker group.

A chunk in a group other than the write's home group has an empty transaction with the same id (a marker) in
the home group and follows that transaction's decision, as branches of transactions over several groups do. So
one COMMIT in the home group decides for all groups. If the driver dies before it, nothing was written. If the
driver dies after it, the outcome of all chunks is decided, and :func:`settle_batch` carries it out.

No later epoch cleans up after a batch write, as in a stream, and no querier answers checks of its
transactions. So at its end the write looks for open transactions until no new ones appear: Spark waits
neither for the tasks of a failed write nor for speculative twins of successful tasks, and these may still
prepare a last chunk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from escrowmq.actors.producer.encoding.encoder import crc32c
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.spark_integration.sink.commit import check_size, commit_together, require_open
from escrowmq.spark_integration.sink.intents import Attempt, Intent, epoch_id_of
from escrowmq.spark_integration.sink.link import SinkLink, roll_back_chunks
from escrowmq.spark_integration.sink.task import attempt_number

log = logging.getLogger(__name__)

#: Time without new transactions after which the write is quiet. Spark gives the Python worker of a task that
#: it kills 2 s to end (spark.python.task.killTimeout).
QUIET_S = 3.0
#: Longest wait for that. It is longer than tasks need to find, at their next chunk, that the write has ended.
SWEEP_MAX_S = 60.0
LOOK_S = 0.5
#: A group follows its home group within 0.2 s; during a fail-over, within some seconds.
FOLLOWED_S, FOLLOW_LOOK_S = 30.0, 0.05
#: Pauses of the background sweep after a write has ended; in total as long as an idle Spark process lives.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 25.0)


def home_of(write_id: str, groups: int) -> int:
    """The group that decides a write."""
    return crc32c(write_id.encode()) % groups


def commit_batch(
    link: SinkLink,
    write_id: str,
    attempts: Sequence[Attempt],
    references: Sequence[Mapping[int, int]] = (),
    *,
    quiet_s: float = QUIET_S,
) -> None:
    """Make all of a write readable. Raises EpochConflict, MessageTooLarge, and the errors of the link.

    If there are signs of unsuccessful attempts, it waits until none has appeared for ``quiet_s``.
    """
    epoch_id = epoch_id_of(write_id, 0)
    by_group = _with_home_first(link, write_id, attempts)
    check_size(epoch_id, by_group, references)
    for gid, ids in by_group.items():
        require_open(link, gid, epoch_id, ids)
    home, *others = by_group
    commit_together(link, home, epoch_id, by_group[home])
    for gid in others:
        _await_chunks(link, gid, epoch_id, by_group[gid])
    found = settle_batch(link, write_id)  # the leftovers of unsuccessful attempts
    if any(found) or any(attempt_number(attempt.name) for attempt in attempts):
        settle_until_quiet(link, write_id, quiet_s)


def abort_batch(
    link: SinkLink, write_id: str, *, quiet_s: float = QUIET_S, at_most_s: float = SWEEP_MAX_S
) -> None:
    """End a failed write: none of it will be readable. Raises the errors of the link."""
    say = f"escrowmq.spark.resolve_write({write_id!r}) settles it"
    log.warning(
        "batch write %s failed and is rolled back; if transactions of it stay open, %s", write_id, say
    )
    if not settle_until_quiet(link, write_id, quiet_s, at_most_s):
        log.warning("tasks of the batch write %s are still running: once they have ended, %s", write_id, say)


def settle_until_quiet(
    link: SinkLink, write_id: str, quiet_s: float = QUIET_S, at_most_s: float = SWEEP_MAX_S
) -> bool:
    """Repeat :func:`settle_batch` until nothing new has appeared for ``quiet_s``; False if it never ends."""
    began = last = time.monotonic()
    while True:
        if any(settle_batch(link, write_id)):
            last = time.monotonic()
        now = time.monotonic()
        if now - last >= quiet_s:
            return True
        if now - began >= at_most_s:
            return False
        time.sleep(LOOK_S)


def sweep_behind(link: SinkLink, write_id: str, pauses_s: Sequence[float] = PAUSES_S) -> threading.Thread:
    """Repeat :func:`settle_batch` after each of these pauses, in a background thread."""

    def sweep() -> None:
        try:
            for pause in pauses_s:
                time.sleep(pause)
                settle_batch(link, write_id)
        except EscrowMQError as error:
            log.info("the clean-up after the batch write %s ends: %s", write_id, error)

    thread = threading.Thread(target=sweep, name=f"escrowmq-sweep-{write_id}", daemon=True)
    thread.start()
    return thread


def settle_batch(link: SinkLink, write_id: str) -> tuple[int, int]:
    """Settle the open transactions of a write as its home group has decided.

    Returns how many were committed and how many rolled back. What the home group has not decided is rolled
    back there first. So this ends a failed write, and finishes a write that was committed although its driver
    did not learn of it. It must not be called while the write is running.
    """
    home = home_of(write_id, link.info.groups)
    undecided = link.open_ids(home)
    if undecided:
        link.rollback(home, undecided)
    committed = rolled_back = 0
    for gid in range(link.info.groups):
        left = link.open_indexes(gid) if gid != home else {}
        wanted, others = _as_decided(link, home, list(left)) if left else ([], [])
        _await_chunks(link, gid, epoch_id_of(write_id, 0), wanted)
        roll_back_chunks(link, gid, {tx_id: left[tx_id] for tx_id in others}, home)
        committed, rolled_back = committed + len(wanted), rolled_back + len(others)
    return committed, rolled_back + len(undecided)


def was_committed(link: SinkLink, write_id: str, attempts: Sequence[Attempt]) -> bool:
    """Whether the home group has committed these attempts. Call it when nothing of the write is open there
    any more; soon, since brokers forget settled transactions."""
    home, ids = next(iter(_with_home_first(link, write_id, attempts).items()))
    return bool(ids) and link.states(home, ids[:1]) == [TransactionState.COMMITTED.value]


def _await_chunks(link: SinkLink, gid: int, epoch_id: str, ids: Sequence[str]) -> None:
    """Wait until chunks that the home group has committed are readable.

    The home group itself tells them, within moments. Only it knows which of them have already followed its
    decision: a chunk that is open although it has followed before is a late copy, and if it were committed
    here its messages would be read twice.
    """
    wanted, until = set(ids), time.monotonic() + FOLLOWED_S
    while not wanted.isdisjoint(link.open_ids(gid)):
        if time.monotonic() >= until:
            log.warning(
                "%s: chunks in group %s are committed and will be readable once it follows", epoch_id, gid
            )
            return
        time.sleep(FOLLOW_LOOK_S)


def _as_decided(link: SinkLink, home: int, ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the ids that the home group has committed, and those that it has not and now never will.

    It is asked with a ROLLBACK, which goes through its log. A plain query could be answered by a leader that
    was deposed without knowing it, and that answer would lack what was committed since.
    """
    wanted: list[str] = []
    others: list[str] = []
    problems = link.rollback(home, ids)
    for i, tx_id in enumerate(ids):
        code, info = problems.get(i, (ResultCode.OK, None))
        if code == ResultCode.TX_CONFLICT and info == TransactionState.COMMITTED.value:
            wanted.append(tx_id)
        elif code in (ResultCode.OK, ResultCode.UNKNOWN_TX):
            others.append(tx_id)
    return wanted, others


def _with_home_first(link: SinkLink, write_id: str, attempts: Sequence[Attempt]) -> dict[int, list[str]]:
    """The ids that each group decides; first the home group, with its own chunks and those of all others."""
    by_group = Intent(0, epoch_id_of(write_id, 0), tuple(attempts)).ids()
    home = home_of(write_id, link.info.groups)
    own = by_group.pop(home, [])
    return {home: own + [tx_id for ids in by_group.values() for tx_id in ids], **by_group}
