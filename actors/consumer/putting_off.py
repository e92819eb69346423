"""Records that a handler could not handle now, or whose failure could not be kept: they come again, and no
commit passes them."""

from __future__ import annotations

from escrowmq.actors.consumer.core import ConsumerCore
from escrowmq.replication.errors import Overloaded
from escrowmq.replication.model import ConsumerRecord


def put_off(core: ConsumerCore, record: ConsumerRecord, pause_s: float, why: str) -> None:
    """The record cannot be handled now: its partition waits, and goes on with it."""
    with core.condition:
        state = core.positions.get((record.topic, record.partition))
        if state is None or state.position is None or state.position <= record.offset:
            return  # it comes again anyway, here or elsewhere
        until = core.clock() + pause_s
        try:
            core.redelivery.add(record, until)
        except Overloaded:
            go_back_to(core, record)
        core.positions.suspend(state, until)
        state.put_off = why
        core.counted.pauses += 1
        core.condition.notify_all()


def goes_on(core: ConsumerCore, record: ConsumerRecord) -> None:
    """A record of a partition that was put off has been handled, or has failed by itself."""
    with core.condition:
        if (state := core.positions.get((record.topic, record.partition))) is not None:
            state.put_off = ""


def read_again(core: ConsumerCore, record: ConsumerRecord) -> bool:
    """Whether an open transaction has it, and the application has gone back to it since: it is to be handled
    once more, whatever becomes of the transaction."""
    with core.condition:
        state = core.positions.get((record.topic, record.partition))
        return state is not None and state.done <= record.offset < state.held


def go_back_to(core: ConsumerCore, record: ConsumerRecord) -> None:
    """It was not handled. Before it in its partition there may be others that wait for redelivery, which
    ``seek`` forgets: reading goes back to the first of them. Raises StaleMember."""
    tp = record.topic, record.partition
    with core.condition:
        waiting = core.redelivery.floor(tp)
        core.seek(*tp, record.offset if waiting is None else min(waiting, record.offset))
