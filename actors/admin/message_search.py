"""Asking the replicas of one partition, one call after the other, for the messages that somebody looks for.

Followers come first, so that the leader has no work with it, and always in the same order: what a replica
has read for one question answers the next one faster. A replica that does not answer, refuses, or lags for
long is passed over for the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from escrowmq.actors.client.router import Router
from escrowmq.replication.calling.finding_answers import FoundRows
from escrowmq.replication.errors import (
    Closed,
    EscrowMQError,
    InvalidMessage,
    NotSupported,
    TopicRecreated,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.model import NO_ID, ResultCode

#: How long a replica may wait for its own work before it answers, and how much longer an answer may take.
WAIT_S, ANSWER_S = 1.0, 4.0
#: How long a replica may lag behind, before another one is asked; and the pause between two attempts.
LAG_S, PAUSE_S = 2.0, 0.1


class Needle(NamedTuple):
    """What is looked for: one of the kinds of ``replication.format``; ``name`` is the header's."""

    kind: int
    needle: bytes
    name: str = ""


class PartitionSearch:
    """Searches ``[start, end)`` of one partition, piece by piece. Not thread-safe."""

    def __init__(
        self,
        router: Router,
        gid: int,
        place: tuple[str, int, int],
        needle: Needle,
        clock: Callable[[], float],
    ) -> None:
        """``place``: topic, partition, the topic's id."""
        self._router, self._gid, self._place, self._needle = router, gid, place, needle
        self._clock = clock
        members, leader = list(router.members(gid)), router.channels[gid].leader
        turn = place[1] % max(1, len(members) - 1)
        followers = [rid for rid in members if rid != leader]
        self._replicas = followers[turn:] + followers[:turn] + [rid for rid in members if rid == leader]
        self._lagging_since: float | None = None

    def next(self, start: int, end: int, limit: int, deadline: float) -> FoundRows | None:
        """What the next answer brings, with ``reached`` above ``start``; None: the time is over.

        Raises TopicRecreated, NotSupported if all replicas are of an earlier version, and at the deadline the
        last refusal of a replica.
        """
        refusal: EscrowMQError | None = None
        old = 0  # replicas that cannot answer
        while (left_s := deadline - self._clock()) > 0:
            rid = self._replicas[0]
            try:
                found = self._ask(rid, start, end, limit, left_s)
                if found.reached > start:
                    self._lagging_since = None
                    return found
                refusal = None
                if found.end > start:
                    continue  # it reads what it needs
            except TopicRecreated:
                raise
            except (UnknownTopic, Unavailable) as error:
                refusal = error
            except NotSupported as error:
                refusal, old = error, old + 1
                if old == len(self._replicas):
                    raise
            if not self._patient(refusal):
                self._replicas.append(self._replicas.pop(0))
            time.sleep(min(PAUSE_S, max(0.0, deadline - self._clock())))
        if refusal is not None:
            raise refusal
        return None

    def _patient(self, refusal: EscrowMQError | None) -> bool:
        """Whether to ask the same replica again: it only lags, and not for long."""
        now = self._clock()
        if refusal is None or isinstance(refusal, UnknownTopic):
            if self._lagging_since is None:
                self._lagging_since = now
            if now - self._lagging_since < LAG_S:
                return True
        self._lagging_since = None
        return False

    def _ask(self, rid: int, start: int, end: int, limit: int, left_s: float) -> FoundRows:
        topic, partition, topic_id = self._place
        arguments = self._place, tuple(self._needle), start, end, limit, min(WAIT_S, left_s)
        try:
            found: Any = self._router.replica_call(self._gid, rid, "find", *arguments).result(
                min(WAIT_S, left_s) + ANSWER_S
            )
        except Exception as error:  # a call of a dead or dying actor can fail in any way
            raise _refusal(rid, self._gid, error) from error
        if not isinstance(found, FoundRows):
            raise NotSupported(f"replica {rid} is of an earlier version; upgrade every replica first")
        if found.code == ResultCode.OTHER_TOPIC:
            if topic_id != NO_ID and found.end > topic_id:
                raise TopicRecreated(topic)
            raise UnknownTopic(topic)  # it lags: it has an earlier topic
        if found.code:
            raise UnknownTopic(topic, partition if found.code == ResultCode.BAD_PARTITION else None)
        return found


def _refusal(rid: int, gid: int, error: Exception) -> EscrowMQError:
    """What a failed call means: Unavailable, if another replica may answer."""
    cause = getattr(error, "cause", error)  # Ray wraps what an actor raised
    if isinstance(cause, Closed):
        return cause
    if isinstance(cause, AttributeError | InvalidMessage):
        return NotSupported(f"replica {rid} is of an earlier version; upgrade every replica first")
    if isinstance(cause, EscrowMQError):
        return Unavailable(str(cause), getattr(cause, "retry_after_s", 0.1))
    return Unavailable(f"replica {rid} of group {gid} does not answer: {cause!r}", 0.1)
