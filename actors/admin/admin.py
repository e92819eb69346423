"""Administration: topics, open transactions, consumer groups, the cluster's status.

Thread-safe; every call is bounded by ``timeout_s`` and raises a typed error on failure. Changes go through
the logs of the broker groups that they concern; repeating an interrupted change is always safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from escrowmq.actors.admin import group_changes
from escrowmq.actors.admin.dead_letters import DeadLetters, Redirects
from escrowmq.actors.admin.group_changes import Goal, OffsetReset, delete_group, plan_reset
from escrowmq.actors.admin.group_offsets import describe_groups
from escrowmq.actors.admin.member_admin import MemberAdmin, Wanted
from escrowmq.actors.admin.messages import MessageAdmin
from escrowmq.actors.admin.scheduled import ScheduledAdmin
from escrowmq.actors.admin.stable_cut import stable_cut
from escrowmq.actors.admin.status import STATUS_WAIT_S, cluster_status
from escrowmq.actors.admin.topic_creation import (
    PartitionTrim,
    TopicOffsets,
    alter_topic,
    carry_out,
    create_topic,
    delete_topic,
    new_name_problem,
    plan_trim,
)
from escrowmq.actors.admin.transactions import TransactionAdmin
from escrowmq.actors.admin.types import (
    ClusterStatus,
    DeadLetter,
    GroupDescription,
    PartitionDescription,
    Redriven,
    ScheduledMessage,
    ShareSettings,
    TopicDescription,
    TransactionDescription,
)
from escrowmq.actors.client import share_groups
from escrowmq.actors.client.background import Background, pause_of
from escrowmq.actors.client.call_arguments import check_by, check_group_name, unsendable
from escrowmq.actors.client.cancelling import ScheduleId
from escrowmq.actors.client.closing import Closing
from escrowmq.actors.client.replica_calls import FeedbackProcesses, ReplicaCalls
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.arguments import check_time
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.errors import (
    ConfigError,
    GroupKindMismatch,
    InvalidMessage,
    OutcomeUnknown,
    Unavailable,
    UnknownGroup,
    UnknownTopic,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.internal_topics import dead_topic, is_internal, retry_topic
from escrowmq.replication.format.settings import SHARE
from escrowmq.replication.model import (
    NO_ID,
    OpenTransaction,
    TopicInfo,
    TransactionState,
)


class Admin(MessageAdmin, MemberAdmin, Closing):
    """Operations on a whole cluster. A context manager; ``close`` ends its thread."""

    def __init__(
        self,
        info: ClusterInfo,
        *,
        timeout_s: float = 30.0,
        calls: ReplicaCalls | None = None,
        feedback: FeedbackProcesses | None = None,
        background: Background | None = None,
    ) -> None:
        """``calls``, ``feedback``: how replicas and feedback processes are reached; None: by Ray, except that
        with ``calls`` no feedback process is reached. ``background``: what runs it; None: a thread."""
        self.info, self._timeout_s = info, timeout_s
        by_ray = feedback is None and calls is None
        self._feedback = _over_ray(info) if by_ray else feedback
        self.router = Router(info, calls=calls, name="escrowmq-admin", background=background)
        self._offsets = OffsetReader(self.router)
        self._transactions = TransactionAdmin(self.router, timeout_s)
        self._scheduled = ScheduledAdmin(self.router, timeout_s)
        self._dead = DeadLetters(
            self.router,
            timeout_s,
            pause=pause_of(background),
            exists=lambda group: bool(self.describe_group(group).kind),
        )
        self._redirects = Redirects(self.router, timeout_s, background)
        self._wanted = Wanted(self.router, timeout_s)

    # ------------------------------------------------------------ topics

    def create_topic(
        self, name: str, partitions: int | None = None, **options: int | str | None
    ) -> TopicInfo:
        """Creates a topic in every broker group and returns its settings. Repeating the call changes nothing.

        A new topic has one partition unless ``partitions`` says more. Options: the fields of
        ``TopicOptions``. Without ``retention_ms`` (milliseconds) and
        ``retention_bytes`` (per partition), messages are kept for ever. An option that is omitted or None
        accepts whatever an existing topic has. Raises ConfigError, or TopicExists if a stated option differs
        from the existing topic.
        """
        problem, known = new_name_problem(name), None
        if problem is not None:
            known = self._known(name)
            if known is None:
                raise ConfigError(problem)
        return create_topic(self._submit, self.info.groups, name, partitions, options, known=known)

    def alter_topic(self, name: str, **settings: int | str | None) -> TopicInfo:
        """Changes settings of a topic while it is in use, in every broker group; returns all settings then in
        force.

        Settings: the fields of ``TopicOptions``; a setting that is omitted or None keeps its value. When the
        new values take effect: retention at its next run (every ten seconds), the transaction time-out and
        the check policy for transactions that are prepared or checked later; a parked transaction stays
        parked. Repeat the call if it was interrupted. Raises ConfigError, UnknownTopic.
        """
        altered = alter_topic(self._submit, self.info.groups, name, settings)
        return replace(altered, first_group=self._topic(name).first_group)

    def topics(self, *, internal: bool = False) -> list[TopicInfo]:
        """All topics, sorted by name. ``internal``: also those into which only brokers write (retries, dead
        letters, replies)."""
        found = (topic for topic in self._ask(True) if internal or not is_internal(topic.name))
        return sorted(found, key=lambda topic: topic.name)

    def describe_topic(self, name: str) -> TopicDescription:
        """The settings, and for each partition its group, leader, start and end. Raises UnknownTopic."""
        info = self._topic(name)
        partitions = [(name, p) for p in range(info.partitions)]
        bounds = self._offsets.bounds(partitions, self._timeout_s)
        found: list[PartitionDescription] = []
        for (_, partition), where in bounds.items():
            if isinstance(where, UnknownTopic):
                raise where
            gid = self.router.placement.group_of(name, partition)
            leader = self.router.channels[gid].leader
            found.append(PartitionDescription(partition, gid, leader, *where))
        return TopicDescription(info, tuple(found))

    def stable_cut(self, topics: Sequence[str]) -> dict[tuple[str, int], int]:
        """The end of each partition of these topics at a stable cut through all broker groups: of every
        transaction all parts lie below it, or none.

        Delayed messages are no part of their transaction here. Raises ConfigError, UnknownTopic,
        TopicRecreated, or Unavailable if none was found in ten tries.
        """
        return stable_cut(self.router, topics, self._timeout_s)

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and its messages. A topic of that name that is created meanwhile is not touched.

        Repeat the call if it was interrupted. Raises UnknownTopic if no group knows the topic, ConfigError
        for topics of retries and dead letters of a share group, which are deleted with it.
        """
        known = self._known(name)
        delete_topic(self._submit, self.info.groups, name, None if known is None else known.topic_id)

    def plan_trim(
        self, name: str, before: int | datetime, partition: int | None = None
    ) -> tuple[PartitionTrim, ...]:
        """What ``trim_topic`` would remove now; changes nothing. Raises what ``trim_topic`` raises."""
        found = TopicOffsets(self._offsets, name, self._timeout_s)
        return plan_trim(self._topic(name), before, partition, bounds=found.bounds, at_time=found.at_time)

    def trim_topic(
        self,
        name: str,
        before: int | datetime | Sequence[PartitionTrim],
        partition: int | None = None,
    ) -> tuple[PartitionTrim, ...]:
        """Deletes the oldest messages: those below an offset of one partition, those older than a time, or
        those in a plan from ``plan_trim``. Returns the plan that was carried out.

        The messages cannot be read from then on; disk space is freed by retention, a segment at a time. What
        open transactions hold is not touched. Raises ConfigError, UnknownTopic, or OffsetOutOfRange for an
        offset beyond the end.
        """
        planned = isinstance(before, Sequence)
        plan = tuple(before) if planned else self.plan_trim(name, before, partition)  # type: ignore[arg-type]
        if planned:
            self._topic(name)  # tells the router where the topic's partitions are
        carry_out(self._submit, self.router.placement.group_of, name, plan)
        return plan

    def _topic(self, name: str) -> TopicInfo:
        known = self._known(name)
        if known is None:
            raise UnknownTopic(name)
        return known

    def _known(self, name: str) -> TopicInfo | None:
        return next(iter(self._ask([name])), None)

    def _ask(self, names: bool | list[str]) -> list[TopicInfo]:
        """The topics with these names, or all of them. Asks a leader: a follower may not know a topic that
        was created a moment ago."""
        asked = self.router.leader_call(0, "topics", names, timeout_s=self._timeout_s)
        known: list[TopicInfo] = result_of(asked, self._timeout_s)
        self.router.placement.hear(known)
        return known

    def _submit(self, gid: int, request: bytes) -> tuple[int, Any]:
        (result,) = result_of(self.router.submit(gid, request, self._timeout_s), self._timeout_s)
        return result[0], result[1] if len(result) > 1 else None

    # ------------------------------------------------------------ transactions

    def list_transactions(
        self,
        state: TransactionState | str | None = None,
        app: str | None = None,
        topic: str | None = None,
        limit: int = 1000,
    ) -> list[OpenTransaction]:
        """Open transactions, oldest first. ``state`` "PARKED": only those that are no longer checked."""
        return self._transactions.open_ones(state, app, topic, limit)

    def show_transaction(self, tx_id: str, app: str | None = None) -> TransactionDescription:
        """One transaction, open or still remembered. ``app`` is required if several apps have used the id.

        Raises UnknownTransaction.
        """
        return self._transactions.show(tx_id, app)

    def transaction_states(self, app: str, tx_ids: Sequence[str]) -> list[TransactionState]:
        """The recorded state of each of these transactions of an app: COMMITTED, ROLLBACK, PREPARE (open), or
        UNKNOWN (never seen, or forgotten). Sends one request to each group's leader."""
        return self._transactions.states(app, tx_ids)

    def resolve_transaction(
        self, tx_id: str, state: TransactionState, app: str | None = None, by: str = "admin"
    ) -> TransactionDescription:
        """Decides a transaction by hand: COMMITTED or ROLLBACK, audited as ``operator:<by>``.

        Repeating the same decision is harmless. Raises UnknownTransaction, TransactionConflict when the other
        decision is recorded, or NotFullyPrepared for a COMMITTED while some part was never prepared. ROLLBACK
        is always possible, even for a branch that its home group has no record of.
        """
        return self._transactions.resolve(tx_id, state, app, by)

    def recheck_transaction(self, tx_id: str, app: str | None = None) -> TransactionDescription:
        """Has a parked transaction checked once more, as soon as a producer of its app with a querier is
        online; returns the transaction's state before that.

        The querier's answer counts as in any other check; after UNKNOWN the transaction stays parked if all
        of its checks are used up. A transaction that is not parked is checked anyway. The leader of its group
        holds the request in memory only: repeat it after a fail-over. Raises UnknownTransaction,
        TransactionSettled, Unavailable.
        """
        return self._transactions.recheck(tx_id, app)

    # ------------------------------------------------------------ delayed messages

    def scheduled(
        self, topic: str, before: datetime | int | None = None, limit: int = 1000
    ) -> list[ScheduledMessage]:
        """Delayed messages of a topic that cannot be read yet, those of the earliest time first.

        ``before``: only those that can be read before this time, as ``deliver_at`` of a message. Messages of
        open transactions are not among them. Raises ConfigError, UnknownTopic.
        """
        return self._scheduled.messages(self._topic(topic), before, limit)

    def cancel_scheduled(self, schedule_id: str) -> bool:
        """Cancels a delayed message; see :meth:`Producer.cancel`."""
        message = ScheduleId.parse(schedule_id, self.info.cluster_id)
        known = self._topic(message.topic)
        if message.partition >= known.partitions:
            raise UnknownTopic(message.topic, message.partition, known.partitions)
        return self._scheduled.cancel(message)

    # ------------------------------------------------------------ consumer groups

    def groups(self) -> list[str]:
        """Names of consumer groups with members or committed offsets."""
        futures = [
            self.router.leader_call(gid, "group_list", timeout_s=self._timeout_s)
            for gid in range(self.info.groups)
        ]
        return sorted({name for future in futures for name in result_of(future, self._timeout_s)})

    def describe_group(self, group: str) -> GroupDescription:
        """The members, and for each partition its reader, committed offset, end and lag.

        A group that does not exist is described without members and partitions.
        """
        (description,) = self.describe_groups([group])
        return description

    def describe_groups(self, groups: Iterable[str]) -> list[GroupDescription]:
        """:meth:`describe_group` of each group, in the order given; asks for many groups at a time."""
        names = [check_group_name(group) for group in groups]
        return describe_groups(self.router, self._offsets, names, self._timeout_s)

    def plan_group_reset(
        self, group: str, to: Goal, topic: str | None = None, partition: int | None = None
    ) -> tuple[OffsetReset, ...]:
        """The group's offsets, and those that :meth:`reset_group` would give it. Changes nothing."""
        if partition is not None and topic is None:
            raise ConfigError(f"partition {partition} belongs to a topic; name it")
        found = self.describe_group(group)
        if found.kind == SHARE:
            raise GroupKindMismatch(group, SHARE)
        committed = found.committed
        wanted = list(committed) if topic is None else self._partitions(topic, partition)
        if not wanted:
            raise UnknownGroup(group)
        ids = {known.name: known.topic_id for known in self._ask(sorted({name for name, _ in wanted}))}
        return plan_reset(
            self._offsets,
            committed,
            wanted,
            to,
            self._timeout_s,
            id_of=lambda name: ids.get(name, NO_ID),
            generation=found.generation,
        )

    def _partitions(self, topic: str, partition: int | None) -> list[tuple[str, int]]:
        """This partition of the topic, or all of them."""
        there = range(self._topic(topic).partitions)
        if partition is not None and (type(partition) is not int or partition not in there):
            raise UnknownTopic(topic, partition, len(there))
        return [(topic, number) for number in (there if partition is None else [partition])]

    def reset_group(
        self,
        group: str,
        to: Goal | Sequence[OffsetReset],
        topic: str | None = None,
        partition: int | None = None,
    ) -> tuple[OffsetReset, ...]:
        """Makes a consumer group without live members continue reading at ``to``; returns the changes.

        ``to``: "earliest", "latest", an offset (with ``topic``, and ``partition`` if it has several), or a
        datetime (in UTC if it has no time zone): the first message at or after it. Without ``topic``, all
        partitions in which the group has an offset. Or ``to`` is a plan from :meth:`plan_group_reset`.
        Raises GroupNotEmpty, UnknownGroup, UnknownTopic, TopicRecreated (the plan is about an earlier topic),
        OffsetOutOfRange, ConfigError, OutcomeUnknown.
        """
        if isinstance(to, str | int | datetime):
            to = self.plan_group_reset(group, to, topic, partition)
        check_group_name(group)
        group_changes.carry_out(self.router, group, to, self._timeout_s)
        return tuple(to)

    def delete_group(self, group: str, by: str = "admin") -> None:
        """Deletes a consumer group without live members, with all of its offsets, settings, retries and dead
        letters; of a share group also what it has finished. The messages themselves stay in their topics: a
        new group of the name can read them.

        Consumers that use the name later form a new group. A member that was disconnected during the deletion
        and returns does not restore its offsets; a share consumer that returns makes the group anew, which
        begins as the consumer's ``auto_offset_reset`` says. ``by``: who does it, for the audit trail of share
        groups. Raises UnknownGroup, GroupNotEmpty (which names the live members), OutcomeUnknown. Repeat the
        call if it was interrupted.
        """
        check_by(by)
        names = [retry_topic(check_group_name(group)), dead_topic(group)]
        topics = {topic.name: topic.topic_id for topic in self._ask(names)}
        delete_group(self.router, group, self._timeout_s, self._submit, by, topics)

    # ------------------------------------------------------------ retries and dead letters

    def set_group(self, group: str, *, by: str = "admin", **settings: Any) -> ShareSettings:
        """Changes settings of a consumer group, in every broker group; returns all that are then in force.

        Settings: ``max_attempts``, ``delays_s`` (a list), ``lease_s``, ``max_age_s`` (None: no limit) and
        ``dead_letters`` ("keep" or "drop"), see ``ShareSettings``; those not named stay. They count from the
        next failure or lease on, also for messages that wait. ``by``: who does it, for the audit trail.
        Repeat the call if it was interrupted. Raises ConfigError.
        """
        check_by(by)
        check_group_name(group)
        values = group_changes.values_of(settings)
        return ShareSettings.of(share_groups.set_group(self._submit, self.info.groups, group, values, by))

    def dead_letters(
        self, group: str, limit: int = 100, since: datetime | int | None = None, reason: str | None = None
    ) -> list[DeadLetter]:
        """The messages with which a group has given up, the oldest first, without those that were redriven or
        dropped. ``since``: that died at or after this time (ms since the epoch, or a datetime); ``reason``:
        whose reason contains this. None of a group that has never had retries. Raises UnknownGroup."""
        return self._dead.listed(group, limit, 0 if since is None else check_time(since), reason)

    def dead_letter(self, group: str, id: str) -> DeadLetter:
        """One dead letter. Raises UnknownDeadLetter if it is not there, or not any more."""
        return self._dead.one(group, id)

    def redrive(
        self,
        group: str,
        ids: Sequence[str] | None = None,
        to: str | None = None,
        rate: float | None = None,
        by: str = "admin",
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> Redriven:
        """Gives dead letters (all, unless ``ids`` names some) to the group again, as at the first attempt; or
        sends them to the topic ``to`` instead. Each is redriven once, however often that is asked for.

        ``rate``: at most so many per second. ``progress(done, total)`` is called meanwhile. ``by``: who does
        it. Raises UnknownDeadLetter, before anything is done, if one was never there; UnknownGroup,
        UnknownTopic, ConfigError. If it is interrupted or refused, with OutcomeUnknown or Unavailable, repeat
        the call.
        """
        target = None if to is None else self._redirects.into(self._topic(to).name)
        return self._dead.redrive(group, ids, target, rate, by, progress)

    def drop_dead_letters(self, group: str, ids: Sequence[str] | None, by: str = "admin") -> int:
        """Gives these dead letters up for good; None: all. Returns how many there were. ``by``: who does it.
        Raises UnknownDeadLetter, before anything is done, if one was never there; UnknownGroup."""
        return self._dead.drop(group, ids, by)

    # ------------------------------------------------------------ the cluster

    def change_settings(self, **values: int) -> dict[str, int]:
        """Changes replicated settings in every broker group, and returns all that are in force.

        Names and meanings: ``Settings`` in replication/format/settings.py. Without arguments nothing is
        changed. Raises InvalidMessage for a name or value that is not allowed; without arguments Unavailable.
        Repeat the call if it was interrupted: until then groups may differ.
        """
        if (problem := unsendable(values)) is not None:
            raise InvalidMessage(problem)
        in_force: dict[str, int] = {}
        for gid in range(self.info.groups):
            try:
                _, in_force = self._submit(gid, ops.settings(values))
            except OutcomeUnknown:
                if values:
                    raise
                raise Unavailable(f"the leader of group {gid} does not answer", 1.0) from None
        return in_force

    def status(self, wait_s: float = STATUS_WAIT_S) -> ClusterStatus:
        """The status of all replicas and feedback processes, after at most ``wait_s`` seconds.

        A process that does not answer in time is shown as unreachable.
        """
        return cluster_status(self.router, self._feedback, wait_s)

    def close(self) -> None:
        """Stops this object's thread; later calls raise Closed. Idempotent."""
        self.router.close()
        if self._feedback is not None:
            self._feedback.close()


def _over_ray(info: ClusterInfo) -> FeedbackProcesses:
    from escrowmq.actors.client.ray_calls import RayFeedbackProcesses  # it imports Ray

    return RayFeedbackProcesses(info.namespace)
