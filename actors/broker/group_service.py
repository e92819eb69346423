"""The broker's side of consumer groups: the coordinator behind a lock, with leadership and the log.

Answers the Broker actor's ``group_*`` and ``commit_offsets`` calls: ``("ok", the coordinator's answer)``
at the leader, and ``("not_leader", leader, term)`` elsewhere, like all calls for leaders. Membership is
decided in memory; offsets go through the log like every other operation. A commit is checked and queued for
the log under one lock, so that commits of a partition are in the log in the order in which their members held
it: a delayed one is refused, and never sets the group's offset back behind its new reader.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self, TypeVar

from escrowmq.actors.broker.coordinator import GroupCoordinator, id_of
from escrowmq.actors.client.consumer_groups import (
    FIRST_OFFSETS,
    GROUP_NAME_BYTES_MAX,
    GroupCallRefused,
    GroupLives,
    GroupSnapshot,
    MembershipStale,
    PlacesMoved,
    TopicIsOther,
    TopicMissing,
    TopicPartition,
)
from escrowmq.replication.calling.answers import Leadership, Reply
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.settings import SHARE, GroupSettings
from escrowmq.replication.host.reads import Reads
from escrowmq.replication.host.requests import Requests, Turn
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.model import NO_ID, ResultCode

# ------------------------------------------------------------------------------------------------------------
# Commits that are on their way to the log, so that nobody reads an offset that is about to change.


@dataclass(slots=True, eq=False)
class _Unknown:
    """A commit whose outcome is not known. ``until``: it is applied once the log is, up to here; None: it may
    not be in the log yet."""

    group: str
    partitions: Sequence[TopicPartition]
    until: int | None = None


class CommitsUnderWay:
    """Partitions with a commit that is queued for the log in this term, and perhaps not applied yet. One
    whose outcome is not known stays here until everything is applied that the log held later, when no
    request waited to be written; or until the term ends, since the next leader has applied everything
    before its term."""

    def __init__(self) -> None:
        self.term = 0
        self.unknown: list[_Unknown] = []
        self.queued: dict[str, Counter[TopicPartition]] = {}

    def lead(self, term: int) -> None:
        """As the coordinator's: in a new term nothing is under way."""
        if term > self.term:
            self.term = term
            self.queued.clear()
            self.unknown.clear()

    def add(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        self.queued.setdefault(group, Counter()).update(partitions)

    def ended(self, term: int, group: str, partitions: Sequence[TopicPartition], *, known: bool) -> None:
        """``known``: they are applied, or certainly not done. Those of an earlier term are already
        forgotten."""
        if term != self.term:
            return
        if known:
            self._discard(group, partitions)
        else:
            self.unknown.append(_Unknown(group, partitions))

    def look(self, noted: Sequence[_Unknown], log_end: int | None, applied: int) -> None:
        """See ``GroupService``. ``log_end`` and ``applied`` were read after these were noted."""
        kept = set(self.unknown)
        for one in noted:
            if one not in kept:
                continue  # of an earlier term, or somebody else has looked
            if one.until is None:
                one.until = log_end
            if one.until is not None and applied >= one.until:
                kept.discard(one)
                self._discard(one.group, one.partitions)
        self.unknown = [one for one in self.unknown if one in kept]

    def _discard(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        queued = self.queued.get(group)
        if queued is None:
            return
        for tp in partitions:
            if queued[tp] <= 1:
                del queued[tp]
            else:
                queued[tp] -= 1
        if not queued:
            del self.queued[group]

    def has_any(self, group: str) -> bool:
        return group in self.queued

    def has(self, group: str, partitions: Iterable[TopicPartition]) -> bool:
        queued = self.queued.get(group)
        return queued is not None and any(tp in queued for tp in partitions)


TOPICS_MAX = 10_000
#: A call that must wait for an operation on its way to the log is tried again after this time, within which
#: the operation is usually applied.
AGAIN_S = 0.02
AGAIN: Reply = ("overloaded", AGAIN_S)
#: Limit of attempts to delete a group, each with a newer generation.
DELETIONS_MAX = 5

T = TypeVar("T")
_REFUSALS = MembershipStale | TopicIsOther | GroupCallRefused


class GroupService:
    """Consumer groups of one broker. Thread-safe; only ``commit`` waits (for the log)."""

    def __init__(
        self,
        *,
        leadership: Callable[[], Leadership],
        partitions: Callable[[str], int | None],
        committed: Callable[[str], Mapping[str, Mapping[int, int]]],
        group_names: Callable[[], Sequence[str]],
        submit: Callable[[bytes, Turn], Reply],
        clock: Callable[[], float],
        which: Callable[[str], object] = lambda topic: None,
        last_void: Callable[[str], int] = lambda group: -1,
        log_end: Callable[[], int | None] = lambda: None,
        applied: Callable[[], int] = lambda: -1,
        led_since: Callable[[int], float | None] = lambda term: None,
        settings: Callable[[str], GroupSettings | None] = lambda group: None,
        has_failed: Callable[[str, str, int], bool] = lambda group, topic, partition: False,
    ) -> None:
        """``leadership()``: (ready leader?, leader's replica number, term), as ``whoami`` answers.
        ``led_since(term)``: when this replica began to lead in that term, by ``clock``; None: just now.

        ``partitions(topic)``: the number, None for an unknown topic. ``committed(group)``: its offsets
        of all topics; ``group_names()``: groups that have any. ``submit``: see ``Requests.submit_in_turn``.
        ``log_end()``: the log's last index, None while requests wait to be written; ``applied()``: the last
        index that was applied. ``settings(group)``: None if none were ever set.
        ``has_failed(group, topic, partition)``: whether attempts are noted there. The rest: see
        ``GroupCoordinator``.
        """
        self._leadership, self._partitions, self._committed = leadership, partitions, committed
        self._group_names, self._submit, self._clock = group_names, submit, clock
        self._lock = threading.Lock()
        self._which, self._led_since = which, led_since
        self._coordinator = GroupCoordinator(which, last_void)
        self.under_way = CommitsUnderWay()
        self._log_end, self._applied, self._settings = log_end, applied, settings
        self._has_failed = has_failed

    @classmethod
    def over(cls, running: RunningReplica, reads: Reads, requests: Requests) -> Self:
        """The consumer groups of a running replica."""
        return cls(
            leadership=running.whoami,
            partitions=reads.partition_count,
            committed=reads.group_offsets,
            group_names=reads.group_names,
            submit=requests.submit_in_turn,
            clock=running.setup.monotonic,
            which=reads.which_topic,
            last_void=reads.last_void,
            log_end=running.log_end,
            applied=lambda: running.replica.state.applied_index,
            led_since=running.led_since,
            settings=reads.group_settings,
            has_failed=reads.has_failed,
        )

    def join(
        self,
        group: str,
        member: str,
        topics: Sequence[str],
        session_timeout_s: float,
        owned: Sequence[tuple[str, int]] = (),
        ids: Mapping[str, int] | None = None,
        generation: int = -1,
    ) -> Reply:
        """See :meth:`GroupCoordinator.join`. Topics that do not exist (yet, or any longer) are left out."""
        problem = _group_problem(group) or _member_problem(member, topics, owned) or _ids_problem(ids)
        if problem is not None:
            return "ok", GroupCallRefused(problem)
        if (shared := self._shared(group)) is not None:
            return shared
        had_offsets = bool(self._committed(group))

        def join(coordinator: GroupCoordinator, now: float) -> object:
            if coordinator.is_being_deleted(group):
                return None
            return coordinator.join(
                group,
                member,
                topics,
                session_timeout_s,
                now,
                partitions=self._partitions,
                had_offsets=had_offsets,
                owned=owned,
                ids=ids,
                generation=generation,
            )

        joined = self._led(join)
        return AGAIN if joined == ("ok", None) else joined

    def heartbeat(self, group: str, member: str, generation: int) -> Reply:
        """See :meth:`GroupCoordinator.heartbeat`."""
        return self._led(
            lambda coordinator, now: coordinator.heartbeat(
                group, member, generation, now, partitions=self._partitions
            )
        )

    def leave(self, group: str, member: str) -> Reply:
        """``("ok", None)``, whether the member is known or not."""
        return self._led(lambda coordinator, now: coordinator.leave(group, member))

    def commit(
        self,
        group: str,
        member: str,
        generation: int,
        offsets: Mapping[str, Mapping[int, int]],
        ids: Mapping[str, int] | None = None,
        attempts: Mapping[str, Mapping[int, int]] | None = None,
    ) -> Reply:
        """``("ok", None)`` once replicated; ``("ok", MembershipStale | TopicMissing | TopicIsOther |
        GroupCallRefused)``; any other status as submit. ``ids``: those of the topics that are meant.
        ``attempts``: topic -> partition -> how often the message at the offset failed; a topic in it names
        each of its partitions in ``offsets``."""
        if (refused := _ids_problem(ids) or _attempts_problem(attempts, offsets)) is not None:
            return "ok", GroupCallRefused(refused)
        if (shared := self._shared(group)) is not None:
            return shared
        if member == "" and generation == FIRST_OFFSETS:
            return self._commit_first(group, offsets, ids or {})
        wanted = _pairs(offsets)

        def check(queue: Callable[[], None]) -> Reply | None:
            def check_and_queue(
                coordinator: GroupCoordinator, now: float
            ) -> MembershipStale | TopicIsOther | GroupCallRefused | bool | None:
                if member == "" and generation > 0 and coordinator.is_void(group, generation):
                    return GroupCallRefused("the group was deleted meanwhile")
                problem = coordinator.check_commit(group, member, generation, wanted, now)
                if problem is not None:
                    return MembershipStale(problem)
                if member == "" and self._committed(group) and coordinator.awaits_members(group, now):
                    return False
                if (other := self._other(offsets, ids or {})) is not None:
                    return other
                queue()
                self.under_way.add(group, wanted)
                return None

            checked = self._led(check_and_queue)
            return None if checked == ("ok", None) else AGAIN if checked == ("ok", False) else checked

        if not offsets:
            return check(lambda: None) or ("ok", None)
        if member == "":  # an operator moves the group: what comes next there is at its first attempt
            failed = {topic for topic, partition in wanted if self._has_failed(group, topic, partition)}
            attempts = {topic: dict.fromkeys(offsets[topic], 0) for topic in failed}
        return self._log(group, offsets, check, attempts or {})

    def _commit_first(
        self, group: str, offsets: Mapping[str, Mapping[int, int]], ids: Mapping[str, int]
    ) -> Reply:
        """Commits offsets only where the group has none. Its offsets are those that were applied and those on
        their way to the log; as long as one of these is on its way, the caller must try again."""
        self._look_after_unknown()
        known = self._committed(group)
        if self._led(lambda coordinator, now: coordinator.is_being_deleted(group)) == ("ok", True):
            return AGAIN
        left = {
            topic: {p: offset for p, offset in by.items() if p not in known.get(topic, ())}
            for topic, by in offsets.items()
        }
        left = {topic: by for topic, by in left.items() if by}
        if not left:
            return self._led(lambda coordinator, now: None)
        wanted = _pairs(left)

        def check(queue: Callable[[], None]) -> Reply | None:
            def check_and_queue(coordinator: GroupCoordinator, now: float) -> bool | TopicIsOther:
                by_topic = self._committed(group)
                if (other := self._other(left, ids)) is not None:
                    return other
                known = any(p in by_topic.get(topic, ()) for topic, p in wanted)
                if known or self.under_way.has(group, wanted) or coordinator.is_being_deleted(group):
                    return False
                if not by_topic:
                    coordinator.begin(group)
                queue()
                self.under_way.add(group, wanted)
                return True

            checked = self._led(check_and_queue)
            if checked == ("ok", False):
                return AGAIN
            return None if checked == ("ok", True) else checked

        return self._log(group, left, check)

    def delete(self, group: str, seen: Mapping[str, Mapping[int, int]]) -> Reply:
        """``("ok", None)`` once it is deleted, or if it did not exist; ``("ok", GroupLives | PlacesMoved |
        GroupCallRefused)``; any other status as submit. ``seen``: all that the caller has seen, so that a
        deletion that arrives late does nothing to a group that is in use again."""
        if (refused := _group_problem(group)) is not None:
            return "ok", GroupCallRefused(refused)
        self._look_after_unknown()
        for _ in range(DELETIONS_MAX):
            led = self._led(lambda coordinator, now: coordinator.newest_generation)
            if led[0] != "ok":
                return led
            answer = self._delete(group, seen, led[1])
            if answer != AGAIN:
                return answer
        return AGAIN

    def _delete(self, group: str, seen: Mapping[str, Mapping[int, int]], generation: int) -> Reply:
        queued = False

        def check(queue: Callable[[], None]) -> Reply | None:
            def check_and_queue(coordinator: GroupCoordinator, now: float) -> object:
                if self.under_way.has_any(group) or coordinator.is_being_deleted(group):
                    return False
                if members := coordinator.members(group, now):
                    return GroupLives(members)
                if (known := self._committed(group)) and known != seen:
                    return PlacesMoved()
                if known and coordinator.awaits_members(group, now):
                    return False
                if coordinator.newest_of(group) > generation:
                    return False  # a member has joined since
                queue()
                coordinator.delete(group, generation)
                return None

            nonlocal queued
            checked = self._led(check_and_queue)
            queued = checked == ("ok", None)
            return None if queued else AGAIN if checked == ("ok", False) else checked

        answer = self._submit(ops.delete_group(group, generation), check)
        if not queued:
            return answer
        if answer != ("unknown",):
            self._led(lambda coordinator, now: coordinator.deletion_ended(group))
        if answer[0] != "ok":
            return answer
        ((code, *info),) = answer[1]
        return "ok", _held(*info) if code == ResultCode.OFFSETS_PENDING else None

    def _other(self, topics: Iterable[str], ids: Mapping[str, int]) -> TopicIsOther | None:
        """The first of these topics whose id differs from ``ids``. A topic that changes later is noticed when
        the offsets are written."""
        for topic in topics:
            if ids.get(topic, NO_ID) != NO_ID and ids[topic] != id_of(self._which(topic)):
                return TopicIsOther(topic)
        return None

    def _log(
        self,
        group: str,
        offsets: Mapping[str, Mapping[int, int]],
        check: Turn,
        attempts: Mapping[str, Mapping[int, int]] = MappingProxyType({}),
    ) -> Reply:
        topics = list(offsets)
        request = b"".join(
            _with_attempts(group, topic, offsets[topic], attempts[topic])
            if topic in attempts
            else ops.group_offsets(group, topic, offsets[topic])
            for topic in topics
        )
        term: int | None = None

        def turn(queue: Callable[[], None]) -> Reply | None:
            def queue_in_term() -> None:
                nonlocal term
                queue()
                term = self.under_way.term

            return check(queue_in_term)

        answer = self._submit(request, turn)
        if term is not None:
            with self._lock:
                self.under_way.ended(term, group, _pairs(offsets), known=answer != ("unknown",))
            if answer == ("unknown",):
                self._look_after_unknown()  # also after the earlier ones: nobody else may look in this term
        if answer[0] != "ok" or isinstance(answer[1], _REFUSALS):
            return answer
        for topic, (code, *info) in zip(topics, answer[1], strict=True):
            if code in (ResultCode.UNKNOWN_TOPIC, ResultCode.BAD_PARTITION):
                return "ok", TopicMissing(topic)
            if code == ResultCode.GROUP_KIND:
                return "ok", GroupCallRefused("it is a share group", SHARE)
            if code == ResultCode.OFFSETS_PENDING:
                return "ok", _held(*info)
            if code not in (ResultCode.OK, ResultCode.DUPLICATE):
                return "ok", GroupCallRefused(f"offsets of {topic!r} were refused: {ResultCode(code).name}")
        return "ok", None

    def names(self) -> Reply:
        """``("ok", [name, ...])``: groups with members or with offsets."""

        def every_name(coordinator: GroupCoordinator, now: float) -> list[str]:
            coordinator.expire(now)
            return sorted({*coordinator.names(), *self._group_names()})

        return self._led(every_name)

    def describe(self, group: str) -> Reply:
        """``("ok", GroupSnapshot)``."""
        offsets = self._committed(group)

        def snapshot(coordinator: GroupCoordinator, now: float) -> GroupSnapshot:
            coordinator.expire(now)
            committed = {t: dict(by) for t, by in offsets.items()}
            newest = coordinator.newest_generation
            settings = self._settings(group)
            told = {} if settings is None else settings.values()
            return GroupSnapshot(coordinator.describe(group, now), committed, newest, told)

        return self._led(snapshot)

    def _shared(self, group: str) -> Reply | None:
        """The refusal of a share group, which has neither members nor offsets; None: it is none."""
        settings = self._settings(group)
        if settings is None or settings.kind != SHARE:
            return None
        return self._led(lambda coordinator, now: GroupCallRefused("it is a share group", SHARE))

    def _look_after_unknown(self) -> None:
        """Lets go of commits whose outcome was unknown, and that are applied by now, or never will be."""
        if noted := list(self.under_way.unknown):
            log_end, applied = self._log_end(), self._applied()
            with self._lock:
                self.under_way.look(noted, log_end, applied)

    def _led(self, do: Callable[[GroupCoordinator, float], T]) -> Reply:
        """Runs ``do`` under the lock if this replica leads: ``("ok", what it returns)``."""
        leadership = self._leadership()
        if not leadership.ready:
            return leadership.refusal()
        with self._lock:
            now = self._clock()
            # Members have had their time to join since then, not since the first call to this coordinator.
            since = self._led_since(leadership.term)
            if not self._coordinator.lead(leadership.term, now if since is None else since):
                return leadership._replace(leader=None).refusal()
            self.under_way.lead(leadership.term)
            return "ok", do(self._coordinator, now)


def _held(held: Sequence[Any]) -> GroupCallRefused:
    """Of a result that says which partition's offset an open transaction holds."""
    return GroupCallRefused("an open transaction holds an offset", held=(held[1], held[2]))


def _pairs(offsets: Mapping[str, Mapping[int, int]]) -> list[TopicPartition]:
    return [(topic, partition) for topic, by in offsets.items() for partition in by]


def _with_attempts(group: str, topic: str, offsets: Mapping[int, int], attempts: Mapping[int, int]) -> bytes:
    flat = [n for partition, offset in offsets.items() for n in (partition, offset, attempts[partition])]
    return share_ops.places(group, topic, flat)


def _attempts_problem(attempts: Any, offsets: Mapping[str, Mapping[int, int]]) -> str | None:
    for topic, by in (attempts or {}).items():
        if topic not in offsets or by.keys() != offsets[topic].keys():
            return f"attempts must name the partitions of {topic!r} that offsets name"
    return None


def _group_problem(group: str) -> str | None:
    size = len(group.encode())
    if not 0 < size <= GROUP_NAME_BYTES_MAX:
        return f"a group's name has 1 to {GROUP_NAME_BYTES_MAX} bytes, not {size}"
    return None


def _ids_problem(ids: Any) -> str | None:
    if ids is None or all(isinstance(t, str) and type(n) is int for t, n in dict(ids).items()):
        return None
    return "ids must be a dict of topic names and numbers"


def _member_problem(member: Any, topics: Any, owned: Any) -> str | None:
    """What is wrong with a member's arguments: they came over the network, with any type."""
    if not isinstance(member, str) or not 0 < len(member) <= GROUP_NAME_BYTES_MAX:
        return f"a member's name is text of 1 to {GROUP_NAME_BYTES_MAX} characters"
    if not 0 < len(topics) <= TOPICS_MAX or not all(isinstance(topic, str) for topic in topics):
        return f"a member reads 1 to {TOPICS_MAX} topics, named by text"
    if not all(isinstance(topic, str) and type(number) is int for topic, number in owned):
        return "a member must own pairs of a topic and the number of a partition"
    return None
