"""Looking up offsets: start and end of a partition, a group's committed offsets, the offset at a time.

Asks leaders, because a follower that lags must not answer for "latest" or "committed". Turns answers into
offsets or typed errors; knows nothing of threads or of callers that wait.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from escrowmq.actors.client.catalog import NAMES_MAX
from escrowmq.actors.client.consumer_groups import (
    FIRST_OFFSETS,
    GroupCallRefused,
    MembershipStale,
    TopicIsOther,
    TopicMissing,
    TopicPartition,
    coordinator_group,
)
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.positions import NO_IDS
from escrowmq.replication.calling.answers import FoundOffsets
from escrowmq.replication.calling.offset_answers import HeldPlaces
from escrowmq.replication.errors import (
    EscrowMQError,
    InvalidMessage,
    NothingCommitted,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
    UnknownTopic,
)
from escrowmq.replication.model import NO_ID, ResultCode, TopicInfo

#: Values that the broker's ``offsets`` call takes instead of a time.
LATEST, EARLIEST = -1, -2

OffsetRequest = tuple[str, int, int]
#: Errors that mean "later".
Passing: TypeAlias = Unavailable | Overloaded


@dataclass(frozen=True, slots=True)
class Lookup:
    """A partition whose position is unknown; see ``PartitionState.goal``."""

    tp: TopicPartition
    epoch: int
    goal: str
    suspect: int
    topic_id: int = NO_ID  # of the topic that is meant, if it is known


class OffsetReader:
    """Asks the leaders of a cluster for offsets. Blocking; thread-safe."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def offsets(
        self, requests: Sequence[OffsetRequest], timeout_s: float, ids: Mapping[str, int] = NO_IDS
    ) -> list[int | UnknownTopic]:
        """``(topic, partition, ts_ms | LATEST | EARLIEST)`` -> first offset at or after that time.

        ``ids``: of the topics that are meant, beside those that the brokers have reported. Raises Unavailable
        if the leader that answers has an earlier topic: it was deposed and does not know yet, or lags behind
        group 0.
        """
        offsets: list[int | UnknownTopic] = []
        for offset in self._found(requests, timeout_s, ids):
            if isinstance(offset, Passing):
                raise type(offset)(*offset.args)
            offsets.append(offset)
        return offsets

    def _found(
        self, requests: Sequence[OffsetRequest], timeout_s: float, ids: Mapping[str, int]
    ) -> list[int | UnknownTopic | Passing]:
        """As ``offsets``, with the error of a broker group in place of the offsets that it did not give."""
        found: list[int | UnknownTopic | Passing] = [UnknownTopic(topic) for topic, _, _ in requests]
        placement = self._router.placement
        self.hear(placement.unheard(topic for topic, _, _ in requests), timeout_s)
        asked = self._ask(requests, range(len(requests)), found, timeout_s, ids)
        missing = [i for i in asked if isinstance(found[i], UnknownTopic)]
        if missing and self._router.info.groups > 1:  # perhaps created again, in other broker groups
            self.hear({requests[i][0] for i in missing}, timeout_s)
            moved = [i for i in missing if placement.group_of(*requests[i][:2]) != asked[i]]
            self._ask(requests, moved, found, timeout_s, ids)
        return found

    def hear(self, topics: Collection[str], timeout_s: float) -> Sequence[TopicInfo]:
        """Learns which broker groups host these topics; returns the topics that exist."""
        if not topics:
            return ()
        names = sorted(topics) if len(topics) <= NAMES_MAX else True
        call = self._router.leader_call(0, "topics", names, timeout_s=timeout_s)
        infos: Sequence[TopicInfo] = result_of(call, timeout_s)
        self._router.placement.hear(infos)
        wanted = frozenset(topics)
        return [info for info in infos if info.name in wanted]

    def _ask(
        self,
        requests: Sequence[OffsetRequest],
        which: Iterable[int],
        found: list[int | UnknownTopic | Passing],
        timeout_s: float,
        ids: Mapping[str, int],
    ) -> dict[int, int]:
        """Sends these requests to their broker groups, as far as those are known, and stores the results in
        ``found``. Returns the group asked for each request."""
        by_group: dict[int, list[int]] = {}
        unheard = self._router.placement.unheard(requests[i][0] for i in which)
        for i in which:
            topic, partition, _ = requests[i]
            if topic not in unheard:
                by_group.setdefault(self._router.placement.group_of(topic, partition), []).append(i)
        futures = {
            gid: self._router.leader_call(
                gid, "offsets", [requests[i] for i in indexes], True, timeout_s=timeout_s
            )
            for gid, indexes in by_group.items()
        }
        for gid, indexes in by_group.items():
            try:
                answer: FoundOffsets = result_of(futures[gid], timeout_s)
            except (Unavailable, Overloaded) as error:
                for i in indexes:
                    found[i] = error
                continue
            told = zip(indexes, answer.codes, answer.offsets, answer.ids, strict=True)
            for i, code, offset, theirs_id in told:
                topic, partition, _ = requests[i]
                meant = max(ids.get(topic, NO_ID), self._router.placement.id_of(topic))
                if NO_ID < theirs_id < meant:
                    text = f"group {gid} has an earlier topic {topic!r} than the one meant"
                    found[i] = Unavailable(text, 0.1)
                else:
                    found[i] = offset if code == ResultCode.OK else _unknown(topic, partition, code)
        return {i: gid for gid, indexes in by_group.items() for i in indexes}

    def bounds(
        self, partitions: Iterable[TopicPartition], timeout_s: float, ids: Mapping[str, int] = NO_IDS
    ) -> dict[TopicPartition, tuple[int, int] | UnknownTopic]:
        """``(start, end)`` of each partition. ``ids``: see ``offsets``."""
        answer: dict[TopicPartition, tuple[int, int] | UnknownTopic] = {}
        for tp, found in self.bounds_each(partitions, timeout_s, ids).items():
            if isinstance(found, Passing):
                raise type(found)(*found.args)
            answer[tp] = found
        return answer

    def bounds_each(
        self, partitions: Iterable[TopicPartition], timeout_s: float, ids: Mapping[str, int] = NO_IDS
    ) -> dict[TopicPartition, tuple[int, int] | UnknownTopic | Passing]:
        """As ``bounds``, with the error of a broker group in place of the bounds that it did not give."""
        wanted = list(partitions)
        found = self._found(_both_ends(wanted), timeout_s, ids)
        answer: dict[TopicPartition, tuple[int, int] | UnknownTopic | Passing] = {}
        for tp, start, end in zip(wanted, found[::2], found[1::2], strict=True):
            if not isinstance(start, int):
                answer[tp] = start
            elif not isinstance(end, int):
                answer[tp] = end
            else:
                answer[tp] = start, end
        return answer

    def committed(self, group: str, topics: Iterable[str], timeout_s: float) -> dict[TopicPartition, int]:
        """A group's committed offsets (the next to read), for the partitions that have one."""
        gid = coordinator_group(group, self._router.info.groups)
        names = sorted(set(topics))
        answer: dict[str, dict[int, int]] = result_of(
            self._router.leader_call(gid, "committed", group, names, timeout_s=timeout_s), timeout_s
        )
        return {(topic, p): offset for topic, by in answer.items() for p, offset in by.items()}

    def committed_and_held(
        self, group: str, topics: Iterable[str], timeout_s: float
    ) -> tuple[dict[TopicPartition, int], frozenset[TopicPartition]]:
        """As ``committed``, and the partitions whose offset an open transaction will move, or leave."""
        names = sorted(set(topics))
        gid = coordinator_group(group, self._router.info.groups)
        found: HeldPlaces = result_of(
            self._router.leader_call(gid, "held_places", group, names, timeout_s=timeout_s), timeout_s
        )
        committed = {(topic, p): offset for topic, by in found.committed.items() for p, offset in by.items()}
        return committed, frozenset((topic, p) for topic, numbers in found.held.items() for p in numbers)

    def resolve(
        self,
        lookups: Sequence[Lookup],
        group: str | None,
        reset: str,
        timeout_s: float,
        committed: Mapping[TopicPartition, int] | None = None,
    ) -> list[int | EscrowMQError]:
        """The position for each look-up, or the error that ``poll`` must raise for it. One of ``Passing``: it
        is to be tried again, since a broker group that is away must not hold up partitions of others.

        Where a ``group`` without a committed offset starts at the end, the end is committed. ``committed``:
        its offsets, if the caller has asked for them.
        """
        if committed is None:
            committed = {}
            if group is not None and any(look.goal == "committed" for look in lookups):
                topics = [look.tp[0] for look in lookups if look.goal == "committed"]
                committed = self.committed(group, topics, timeout_s)
        known = [committed.get(look.tp) if look.goal == "committed" else None for look in lookups]
        missing = [look.tp for look, offset in zip(lookups, known, strict=True) if offset is None]
        if group is not None and reset == "latest":
            self.hear({topic for topic, _ in missing}, timeout_s)  # whose ends these are
        ids = {look.tp[0]: look.topic_id for look in lookups}
        ends = self._found(_both_ends(missing), timeout_s, ids)
        bounds = dict(zip(missing, zip(ends[::2], ends[1::2], strict=True), strict=True))
        chosen = [
            offset if offset is not None else _choose(look, *bounds[look.tp], reset)
            for look, offset in zip(lookups, known, strict=True)
        ]
        if group is None or reset != "latest":
            return chosen
        first = {
            look.tp: offset
            for look, was, offset in zip(lookups, known, chosen, strict=True)
            if was is None and look.goal == "committed" and not isinstance(offset, EscrowMQError)
        }
        standing = self._commit_first(group, first, timeout_s) if first else {}
        return [standing.get(look.tp, offset) for look, offset in zip(lookups, chosen, strict=True)]

    def begin(self, group: str, at_end: Mapping[TopicPartition, bool], timeout_s: float) -> frozenset[str]:
        """Commits the ends of these partitions, or else their starts, as the group's offsets where it has
        none. Returns the topics that may lack offsets afterwards, because a broker group does not know them
        yet, or no longer: try these again."""
        first: dict[TopicPartition, int] = {}
        late: set[str] = set()
        for tp, found in self.bounds(at_end, timeout_s).items():
            if isinstance(found, UnknownTopic):
                late.add(tp[0])
            else:
                first[tp] = found[at_end[tp]]
        while first := {tp: offset for tp, offset in first.items() if tp[0] not in late}:
            answer = self._send_first(group, first, timeout_s)
            if not isinstance(answer, TopicMissing | TopicIsOther):
                break
            late.add(answer.topic)  # one such topic must not hold up the others
        return frozenset(late)

    def incomplete(self, topics: Iterable[TopicInfo], timeout_s: float) -> frozenset[str]:
        """Those of these topics that a broker group with partitions of theirs does not know yet, or no
        longer."""
        groups = self._router.info.groups
        if groups == 1:
            return frozenset()
        asked = [(info.name, p, EARLIEST) for info in topics for p in range(min(info.partitions, groups))]
        found = self.offsets(asked, timeout_s)
        return frozenset(
            topic
            for (topic, _, _), offset in zip(asked, found, strict=True)
            if isinstance(offset, UnknownTopic)
        )

    def _commit_first(
        self, group: str, ends: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Commits the ends as the group's offsets where it has none; returns the offsets it then has.

        An offset known only to this consumer would be lost with it, and so would all messages until the next
        consumer of the group finds one.
        """
        answer = self._send_first(group, ends, timeout_s)
        if isinstance(answer, TopicIsOther):  # these ends are another topic's
            raise Unavailable(f"topic {answer.topic!r} was created again while its end was looked up", 0.1)
        # TopicMissing: deleted meanwhile; the reader reports that.
        return self.committed(group, {topic for topic, _ in ends}, timeout_s)

    def _send_first(
        self, group: str, ends: Mapping[TopicPartition, int], timeout_s: float
    ) -> MembershipStale | TopicMissing | TopicIsOther | None:
        """Asks the group's coordinator to commit first offsets; returns its answer."""
        by_topic: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in ends.items():
            by_topic.setdefault(topic, {})[partition] = offset
        gid = coordinator_group(group, self._router.info.groups)
        known = {topic: self._router.placement.id_of(topic) for topic in by_topic}
        ids = {topic: topic_id for topic, topic_id in known.items() if topic_id != NO_ID}
        arguments = group, "", FIRST_OFFSETS, by_topic, ids
        try:
            answer: MembershipStale | TopicMissing | TopicIsOther | GroupCallRefused | None = result_of(
                self._router.leader_call(gid, "commit_offsets", *arguments, timeout_s=timeout_s), timeout_s
            )
        except OutcomeUnknown as error:
            raise Unavailable(f"the first offsets of group {group!r} may not be committed", 1.0) from error
        if isinstance(answer, GroupCallRefused):
            refused = InvalidMessage(f"the first offsets of group {group!r} were refused: {answer.reason}")
            raise answer.error(group, refused)
        return answer


def _both_ends(partitions: Iterable[TopicPartition]) -> list[OffsetRequest]:
    return [(t, p, what) for t, p in partitions for what in (EARLIEST, LATEST)]


def _choose(
    look: Lookup, start: int | EscrowMQError, end: int | EscrowMQError, reset: str
) -> int | EscrowMQError:
    if isinstance(start, EscrowMQError):
        return start
    if isinstance(end, EscrowMQError):
        return end
    if look.goal == "check" and start <= look.suspect <= end:
        return look.suspect  # the replica without it only lagged
    goal = look.goal if look.goal in ("earliest", "latest") else reset
    if goal == "none":
        if look.goal == "check":
            return OffsetOutOfRange(*look.tp, look.suspect, start, end)
        return NothingCommitted(*look.tp, -1, start, end)
    return start if goal == "earliest" else end


def _unknown(topic: str, partition: int, code: Any) -> UnknownTopic:
    if code == ResultCode.BAD_PARTITION:
        return UnknownTopic(topic, partition)
    return UnknownTopic(topic)
