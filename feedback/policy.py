"""All rules of feedback: which producer to ask, what an answer means, how long to pause.

Pure functions of their arguments. The brokers' part of the rules is replicated and is in
``replication.state.due_queue``: when a transaction is due, its back-off, and when it is parked. Nothing
here may turn silence into a commit or a rollback: only an answer, the home group's decision, or the
topic's explicit policy ``rollback`` does that.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Protocol, TypeVar

from escrowmq.replication.calling.answers import LockedRow
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.model import TransactionState

#: After a failed call or an unexpected error.
RETRY = Backoff(first_s=0.1, longest_s=2.0)
#: Between lock calls that return empty at once; the first pause is FMQ's.
LOCK_AGAIN = Backoff(first_s=0.1, longest_s=1.0)


#: A check whose local transaction still runs is asked again after half of the time that it has been open,
#: within these bounds. So a lock wait of ten seconds costs two checks and one of an hour two a minute; and
#: when such a producer dies, its check is late by at most half of the transaction's age.
RUNNING_MIN_S, RUNNING_MAX_S = 1.0, 30.0
#: A check whose owner is offline but not yet gone is put off for as long as the owner has been silent, and at
#: least this.
ABSENT_MIN_S = 1.0


class Route(enum.Enum):
    """Where the outcome of a locked transaction comes from."""

    PRODUCER = "producer"
    TOPIC_POLICY = "topic policy"


class Trouble(enum.Enum):
    """Why an UNKNOWN is not the application's own word."""

    NONE = ""
    RAISED = "raised"  # the querier raised, or returned something other than a state
    TIMED_OUT = "timed out"  # the querier hung, or the producer did not answer in time
    BUSY = "busy"  # the querier was never called: all its threads were busy
    ELSEWHERE = "elsewhere"  # its querier has, or came upon, another table: nothing was looked up
    RUNNING = "running"  # the local transaction is still running in this very process


class Verdict(enum.Enum):
    """What happens to a check."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    EXPIRE = "expire"  # rollback by the topic's policy
    COUNT = "count"  # still open: counted, asked again after a back-off, parked in the end
    ASK_ANOTHER = "ask another"
    RELEASE = "release"  # no producer was asked: not counted, due again
    PUT_OFF = "put off"  # not counted either, and due later: asking again at once is useless


class Candidate(Protocol):
    """What the choice of a producer depends on."""

    instance: str
    room: int
    parked: bool
    last_seen: float

    @property
    def load(self) -> int: ...


C = TypeVar("C", bound=Candidate)


def route(row: LockedRow) -> Route:
    """Branches of transactions over several groups are never locked: their leaders follow the home groups."""
    return Route.TOPIC_POLICY if row.exhausted else Route.PRODUCER


def judge(state: TransactionState, trouble: Trouble, *, others: bool) -> Verdict:
    """What a producer's answer means. ``others``: whether a producer that was not asked yet is online.

    PREPARE is not an answer (that it is open is known), so it counts as UNKNOWN. An honest UNKNOWN is the
    application's word; a querier that raised or hung says nothing about the transaction, and another
    process may well know. BUSY and ELSEWHERE never count, since the querier was not asked; nor does RUNNING,
    since a slow local transaction must not use up its checks (nor be rolled back by the topic's policy
    meanwhile). From the owner, every answer except RUNNING also means that the local transaction is not
    running, so others may be asked.
    """
    if state is TransactionState.COMMITTED:
        return Verdict.COMMIT
    if state is TransactionState.ROLLBACK:
        return Verdict.ROLLBACK
    if trouble is Trouble.RUNNING:
        return Verdict.PUT_OFF
    if trouble is Trouble.ELSEWHERE:
        return Verdict.ASK_ANOTHER if others else Verdict.PUT_OFF
    if trouble is Trouble.BUSY:
        return Verdict.ASK_ANOTHER if others else Verdict.RELEASE
    if trouble is not Trouble.NONE and others:
        return Verdict.ASK_ANOTHER
    return Verdict.COUNT


def pick(taking: Sequence[C], tried: Set[str]) -> C | None:
    """The producer to ask: parked, least loaded, then most recently seen (dead ones were seen longest ago).

    ``taking``: producers that are online and take checks, now or in a moment. One that was already tried for
    this check is asked again only if there is no other.
    """
    fresh = [seat for seat in taking if seat.instance not in tried]
    parked = [seat for seat in fresh or taking if seat.parked and seat.room > 0]
    return min(parked, key=lambda seat: (seat.load, -seat.last_seen), default=None)


def running_pause_s(age_s: float) -> float:
    """When to ask again about a transaction of this age whose local transaction is running."""
    return min(max(age_s / 2, RUNNING_MIN_S), RUNNING_MAX_S)


def absent_pause_s(silent_s: float, gone_in_s: float) -> float:
    """When to look again for an owner that has been silent for ``silent_s`` and is gone in ``gone_in_s``: a
    few times, the last one when it is gone."""
    return min(max(silent_s, ABSENT_MIN_S), gone_in_s)


def lock_pause_s(empty_in_a_row: int, waited_s: float, wait_s: float) -> float:
    """Pause before the next lock call. A leader that has no room for another long poll answers empty at
    once; then the pause grows from 0.1 s (FMQ's) to 1 s. It is 0 while polls wait or find work."""
    if empty_in_a_row == 0 or waited_s >= wait_s / 2:
        return 0.0
    return LOCK_AGAIN.pause_s(empty_in_a_row - 1)


# ------------------------------------------------------------------------------------------------------------
# A loop that survives its errors: a failing step costs a pause, never the loop.
#
# RocketMQ's scanner dies, or stalls every topic, at a single exception; here a loop continues after one. It
# must never swallow a cancellation.

log = logging.getLogger(__name__)


def _always() -> bool:
    return True


async def endless(
    step: Callable[[], Awaitable[None]],
    counts: Counter[str],
    what: str,
    more: Callable[[], bool] = _always,
) -> None:
    """Run ``step`` repeatedly until cancelled, or while there is ``more`` to do; after a failure it pauses
    for 0.1 s, doubling up to 2 s."""
    failures = 0
    while more():
        try:
            await step()
            failures = 0
            continue
        except Unavailable:
            counts["unavailable"] += 1
        except Exception:
            counts["errors"] += 1
            log.exception("%s: an error; the loop continues", what)
        await asyncio.sleep(RETRY.pause_s(failures))
        failures += 1
