"""What a consumer has read, as work of a transaction that commits the group's offsets itself.

Each partition's work began at the group's committed offset when this consumer took the partition over or
moved it last. If the transaction does not commit, whatever the reason, the consumer goes back to that
offset, which it looks up once nobody holds it any more: so the same records are polled again, unless somebody
else has done the work.

One rule for offsets and nacks: the work ends, in each partition, before the first record that was nacked. So
a nack is a part of the transaction (ordered_retries.py): it counts once the transaction is committed, and is
taken back with the rest. It may come until the PREPARE is made. That needs a group in which all that is
behind such a record comes again, one that reads in order. In other groups others overtake the record, and an
offset cannot say so: in a group with ``order="concurrent"`` a nacked record leaves the partition at once,
whatever becomes of the transaction, and without ``retry`` only this consumer knows of it.
"""

from __future__ import annotations

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.group_work import GroupWork, Span
from escrowmq.actors.consumer.core import ConsumerCore
from escrowmq.actors.consumer.positions import EVERYTHING, PartitionState
from escrowmq.actors.consumer.retries import ConcurrentRetries, LocalRetries
from escrowmq.replication.errors import ConfigError, InvalidMessage, StaleMember
from escrowmq.replication.format.ops import NONE_YET

_LOST = "partitions were lost since they were read; poll again"


def group_work(core: ConsumerCore) -> GroupWork:
    """What ``poll`` has returned since the group's offset was last moved, up to the lowest nacked record.

    Raises ConfigError without a group and with ``order="concurrent"``, StaleMember if a partition was lost
    since it was read, InvalidMessage if the consumer was moved back behind that offset or keeps records
    that were nacked, and what looking up an offset raises; then the consumer goes back, except where it was
    moved. Blocks only if an offset must be looked up.
    """
    core.check_open()
    member = core.membership
    if member is None:
        raise ConfigError("a consumer without a group has no offsets to send; use send_offsets(group, {...})")
    if isinstance(core.retries, ConcurrentRetries):
        raise ConfigError(
            'send_offsets needs a group that reads in order: with order="concurrent" a nacked record leaves '
            'its partition at once, whatever becomes of the transaction; use RetryPolicy(order="ordered")'
        )
    try:
        with core.condition:
            _check_nothing_lost(core)
            _check_nothing_waits(core)
        _look_up_committed(core)
    except BaseException:
        go_back(core)
        raise
    with core.condition:
        member.check_not_fenced()
        work = _spans(core)
        ids = {topic: _id_of(core, topic) for topic in {state.topic for state in work}}
        joins = member.joins
        for state in work:
            state.nacked_at = None

    def check() -> None:
        with core.condition:
            member.check_not_fenced()
            same = all(core.positions.get(state.tp) is state for state in work)
            held = member.joins == joins or member.still_holds(frozenset(state.tp for state in work))
            if member.idle or not same or not held:
                raise StaleMember(_LOST)
            _check_nothing_waits(core)
            for state, (begin, end) in list(work.items()):
                if state.nacked_at is not None and state.nacked_at < end:
                    work[state] = spans[state.tp] = begin, state.nacked_at
                    if not state.has_work_before(state.nacked_at):
                        del work[state], spans[state.tp]
                        continue
                state.done = state.held = work[state][1]

    def ended(committed: bool) -> None:
        with core.condition:
            for state, (_, end) in work.items():
                state.held = 0
                if committed:
                    state.moved_to(end)
                    continue
                if core.positions.get(state.tp) is state:
                    _go_back(core, state)
        if not committed:
            core.membership_thread.wake()

    spans: dict[TopicPartition, Span] = {state.tp: span for state, span in work.items()}
    return GroupWork(member.group, spans, ids, check, ended)


def _check_nothing_lost(core: ConsumerCore) -> None:
    """Locked. Raises StaleMember, once, if a ``poll`` has taken over that a partition is lost of which an
    earlier one had returned records: the application may have outputs of these in hand."""
    lost, core.lost_work = core.lost_work, False
    if lost:
        raise StaleMember(_LOST)


def _check_nothing_waits(core: ConsumerCore) -> None:
    """Locked. Raises InvalidMessage if the consumer itself keeps records that were nacked."""
    if isinstance(core.retries, LocalRetries) and core.redelivery:
        raise InvalidMessage(
            "records that were nacked wait in this consumer, and others overtake them: a transaction cannot "
            'leave them out. Use retry=RetryPolicy(order="ordered"), or send such records to a topic of your '
            "own in the transaction. poll returns again what no transaction has"
        )


def go_back(core: ConsumerCore) -> None:
    """No transaction has what ``poll`` has returned: it is polled again. Does not block."""
    with core.condition:
        for state in core.positions.states():
            if state.position is not None:
                _go_back(core, state)
    core.membership_thread.wake()


def _go_back(core: ConsumerCore, state: PartitionState) -> None:
    """To the group's offset. What lies before that was done, perhaps by a transaction of unknown outcome."""
    state.group_offset, state.done = None, EVERYTHING
    state.look_up("committed")
    core.redelivery.drop(state.tp)


def _spans(core: ConsumerCore) -> dict[PartitionState, Span]:
    """Locked. Of the partitions in which there is work. If the application has moved one back, that stays
    where it is, and the others go back."""
    states = core.positions.states()
    try:
        return {state: span for state in states if (span := _span(core, state)) is not None}
    except InvalidMessage:
        for state in states:
            if (
                state.position is not None
                and state.group_offset is not None
                and state.position > state.group_offset
            ):
                _go_back(core, state)
        core.membership_thread.wake()
        raise


def _span(core: ConsumerCore, state: PartitionState) -> Span | None:
    """Where a partition's work began and ends; None: there is none."""
    if state.position is None or state.group_offset is None:
        return None
    floor = core.redelivery.floor(state.tp)
    end = state.position if floor is None else min(floor, state.position)
    if end < state.group_offset:
        raise InvalidMessage(
            f"{state.topic}/{state.partition} was moved back to {end}, its group is at {state.group_offset}; "
            "a transaction moves a group forwards only: use admin.reset_group"
        )
    return None if end == state.group_offset else (state.group_offset, end)


def _id_of(core: ConsumerCore, topic: str) -> int:
    """The id of the topic that was read."""
    assert core.membership is not None
    told = core.membership.ids
    return told[topic] if topic in told else core.router.placement.id_of(topic)


def _look_up_committed(core: ConsumerCore) -> None:
    """Of partitions that the application has moved before the group's offset was known."""
    with core.condition:
        moved = [state for state in core.positions.states() if state.position is not None]
        unknown = [state for state in moved if state.group_offset is None]
    if not unknown:
        return
    assert core.group is not None
    found = core.offsets.committed(core.group, {state.topic for state in unknown}, core.config.call_timeout_s)
    with core.condition:
        for state in unknown:
            if state.group_offset is None:
                state.group_offset = found.get(state.tp, NONE_YET)
