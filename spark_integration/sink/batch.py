"""Committing a batch write, which has no checkpoint: the decision is one entry in one broker group.

Each chunk in another group than the write's home group has an empty transaction of the same id there, and
follows its decision, as branches of transactions over several groups do. So one COMMIT in the home group
decides over all groups; a driver that dies before it leaves a write that was never done, and one that dies
after it leaves chunks whose fate is known, and which :func:`settle_batch` carries out.

Nobody comes after a batch write to clear up, as a stream's next epoch does, and nobody answers checks of its
transactions. So its end looks for what stays open until nothing new shows: Spark waits neither for the tasks
of a write that failed nor for twins of those that won, and they may prepare a last chunk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from escrowmq.actors.producer.encoder import crc32c
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.model import ResultCode, TransactionState
from escrowmq.spark_integration.sink.commit import check_size, commit_together, require_open
from escrowmq.spark_integration.sink.intents import Attempt, Intent, epoch_id_of
from escrowmq.spark_integration.sink.link import SinkLink, roll_back_chunks
from escrowmq.spark_integration.sink.task import attempt_number

log = logging.getLogger(__name__)

#: Spark leaves the Python side of a task that it kills 2 s to end (spark.python.task.killTimeout).
QUIET_S = 3.0
#: Longer than tasks need that meet a decision over their chunks at the next one; nobody waits longer.
SWEEP_MAX_S = 60.0
LOOK_S = 0.5
#: A group follows its home group within a fifth of a second; through a fail-over, within some.
FOLLOWED_S, FOLLOW_LOOK_S = 30.0, 0.05
#: Behind a write that has ended: as long as an idle process of Spark's lives, and never in anybody's way.
PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0, 25.0)


def home_of(write_id: str, groups: int) -> int:
    """The group that decides over a write."""
    return crc32c(write_id.encode()) % groups


def commit_batch(
    link: SinkLink,
    write_id: str,
    attempts: Sequence[Attempt],
    references: Sequence[Mapping[int, int]] = (),
    *,
    quiet_s: float = QUIET_S,
) -> None:
    """Make all of a write readable. Raises EpochConflict, MessageTooLarge, and what the link raises.

    Where there are signs of attempts that lost, it waits until none has shown for ``quiet_s``.
    """
    epoch_id = epoch_id_of(write_id, 0)
    by_group = _with_home_first(link, write_id, attempts)
    check_size(epoch_id, by_group, references)
    for gid, ids in by_group.items():
        require_open(link, gid, epoch_id, ids)
    home, *others = by_group
    commit_together(link, home, epoch_id, by_group[home])
    for gid in others:
        _finish_chunks(link, gid, epoch_id, by_group[gid])
    found = settle_batch(link, write_id)  # what unsuccessful attempts have left
    if any(found) or any(attempt_number(attempt.name) for attempt in attempts):
        settle_until_quiet(link, write_id, quiet_s)


def abort_batch(
    link: SinkLink, write_id: str, *, quiet_s: float = QUIET_S, at_most_s: float = SWEEP_MAX_S
) -> None:
    """End a write that failed: nothing of it will be read. Raises what the link raises."""
    say = f"escrowmq.spark.resolve_write({write_id!r}) settles it"
    log.warning(
        "batch write %s failed and is rolled back; should transactions of it stay open, %s", write_id, say
    )
    if not settle_until_quiet(link, write_id, quiet_s, at_most_s):
        log.warning("tasks of the batch write %s still run: once they have ended, %s", write_id, say)


def settle_until_quiet(
    link: SinkLink, write_id: str, quiet_s: float = QUIET_S, at_most_s: float = SWEEP_MAX_S
) -> bool:
    """:func:`settle_batch` until nothing has shown for ``quiet_s``; False if that does not come about."""
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
    """:func:`settle_batch` after each of these pauses, in a thread that keeps nobody waiting."""

    def sweep() -> None:
        try:
            for pause in pauses_s:
                time.sleep(pause)
                settle_batch(link, write_id)
        except EscrowMQError as error:
            log.info("sweeping behind the batch write %s ends: %s", write_id, error)

    thread = threading.Thread(target=sweep, name=f"escrowmq-sweep-{write_id}", daemon=True)
    thread.start()
    return thread


def settle_batch(link: SinkLink, write_id: str) -> tuple[int, int]:
    """Settle what is open of a write as its home group has it; returns how many were committed, and rolled
    back. What its home group has not decided is rolled back there first: so this ends a write that failed,
    finishes one whose COMMIT was decided before its driver could know, and must not meet one that runs.
    """
    home = home_of(write_id, link.info.groups)
    undecided = link.open_ids(home)
    if undecided:
        link.rollback(home, undecided)
    committed = rolled_back = 0
    for gid in range(link.info.groups):
        left = link.open_places(gid) if gid != home else {}
        wanted, others = _as_decided(link, home, list(left)) if left else ([], [])
        _finish_chunks(link, gid, epoch_id_of(write_id, 0), wanted)
        roll_back_chunks(link, gid, {tx_id: left[tx_id] for tx_id in others}, home)
        committed, rolled_back = committed + len(wanted), rolled_back + len(others)
    return committed, rolled_back + len(undecided)


def _finish_chunks(link: SinkLink, gid: int, epoch_id: str, ids: Sequence[str]) -> None:
    """Make chunks readable that home has committed. It tells those itself that it sees to, within moments;
    they are waited for. It alone knows which have done it: what is open and has done it before is a late
    copy, and would be read twice if it were committed here."""
    places = link.open_places(gid)
    mine = [tx_id for tx_id in ids if places.get(tx_id, -1) < 0]
    commit_together(link, gid, epoch_id, mine)
    until = time.monotonic() + FOLLOWED_S
    while any(places.get(tx_id, -1) >= 0 for tx_id in ids):
        if time.monotonic() >= until:
            log.warning(
                "%s: chunks in group %s are committed, and will be readable once it follows", epoch_id, gid
            )
            return
        time.sleep(FOLLOW_LOOK_S)
        places = link.open_places(gid)


def _as_decided(link: SinkLink, home: int, ids: Sequence[str]) -> tuple[list[str], list[str]]:
    """Which of these the home group has committed, and which it has not, and now never will.

    Asked by a ROLLBACK, which goes through its log: a leader that has been deposed and does not know it yet
    could still answer a question, without what was committed since.
    """
    wanted: list[str] = []
    others: list[str] = []
    problems = link.rollback(home, ids)
    for place, tx_id in enumerate(ids):
        code, info = problems.get(place, (ResultCode.OK, None))
        if code == ResultCode.TX_CONFLICT and info == TransactionState.COMMITTED.value:
            wanted.append(tx_id)
        elif code in (ResultCode.OK, ResultCode.UNKNOWN_TX):
            others.append(tx_id)
    return wanted, others


def _with_home_first(link: SinkLink, write_id: str, attempts: Sequence[Attempt]) -> dict[int, list[str]]:
    """All ids that each group is to decide: the home group first, over its own chunks and all others'."""
    by_group = Intent(0, epoch_id_of(write_id, 0), tuple(attempts)).ids()
    home = home_of(write_id, link.info.groups)
    own = by_group.pop(home, [])
    return {home: own + [tx_id for ids in by_group.values() for tx_id in ids], **by_group}
