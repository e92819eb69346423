"""Which handler is called for which partitions, and when the assignment is applied: without threads."""

from __future__ import annotations

import pytest

from escrowmq.actors.client.consumer_groups import GroupAssignment, GroupJoined
from escrowmq.actors.consumer.membership_thread import Membership
from escrowmq.actors.consumer.positions import Positions
from escrowmq.actors.consumer.rebalance import HandlerCall, Handlers, Rebalance


def tps(*numbers):
    return frozenset(("orders", n) for n in numbers)


class Scene:
    """A member, where it reads, and what its handlers were told."""

    def __init__(self, **handlers):
        self.positions = Positions(fetch_bytes=1, buffer_bytes=1, linger_s=0.0)
        self.member = Membership("g", "a")
        self.take_over = Rebalance(self.positions, self.member, self._apply)
        self.take_over.handlers = Handlers(**(handlers or dict.fromkeys(HANDLERS, print)))

    def _apply(self, wanted, kept):
        self.positions.assign(dict.fromkeys(wanted, 0), kept)

    def told(self):
        """All that is due, in order."""
        calls = []
        while (call := self.take_over.next("me")) is not None:
            calls.append((call.name, frozenset(call.partitions)))
            self.take_over.done(call)
        return calls

    def reads(self):
        return frozenset(self.positions.assigned())

    def join(self, *numbers, kept=None, held=None, generation=1):
        assignment = GroupAssignment(generation, tps(*numbers), False)
        self.member.on_join(GroupJoined(assignment, tps(*(kept or ())), generation, held))

    def hear(self, *numbers, generation):
        self.member.on_heartbeat(GroupAssignment(generation, tps(*numbers), False))


HANDLERS = ("on_assign", "on_revoke", "on_lost")


def test_only_what_changes_is_told():
    scene = Scene()
    scene.join(0, 1)
    assert scene.told() == [("on_assign", tps(0, 1))]
    scene.hear(1, 2, generation=2)
    assert scene.told() == [("on_revoke", tps(0)), ("on_assign", tps(2))]
    scene.hear(1, 2, generation=3)
    assert scene.told() == [] and scene.member.generation == 3


def test_what_goes_is_held_until_the_handler_has_returned():
    scene = Scene()
    scene.join(0, 1)
    scene.told()
    scene.hear(1, generation=2)
    call = scene.take_over.next("me")
    assert call is not None and call.name == "on_revoke"
    assert scene.reads() == tps(0, 1) and scene.member.generation == 1, "it may commit in all of them"
    scene.take_over.done(call)
    assert scene.take_over.next("me") is None
    assert scene.reads() == tps(1) and scene.member.generation == 2


def test_what_was_given_to_another_is_lost_and_what_can_still_be_committed_is_revoked():
    scene = Scene()
    scene.join(0, 1, 2)
    scene.told()
    scene.join(1, kept=(1,), held=tps(1, 2), generation=9)
    assert scene.told() == [("on_lost", tps(0)), ("on_revoke", tps(2))]
    assert scene.reads() == tps(1)


def test_without_on_lost_what_is_lost_is_told_to_on_revoke():
    scene = Scene(on_revoke=print)
    scene.join(0)
    assert scene.told() == []
    scene.member.lose_all()
    assert scene.told() == [("on_lost", tps(0))], "by its own name, so that a log tells them apart"
    assert not scene.reads()


def test_what_was_told_as_gone_and_is_offered_again_begins_anew():
    scene = Scene()
    scene.join(0, 1)
    scene.told()
    scene.positions.resolve(("orders", 0), scene.positions.get(("orders", 0)).epoch, 7)
    scene.hear(1, generation=2)
    call = scene.take_over.next("me")
    scene.hear(0, 1, generation=3)  # meanwhile
    scene.take_over.done(call)
    assert scene.told() == [("on_assign", tps(0))]
    assert scene.positions.get(("orders", 0)).position is None, (
        "from where the group is, which it may have moved"
    )


def test_what_goes_before_it_was_told_of_is_not_told():
    scene = Scene()
    scene.join(0, 1)
    call = scene.take_over.next("me")
    scene.take_over.done(HandlerCall(call.name, call.handler, [("orders", 0)]))  # only the first was told
    scene.hear(0, generation=2)
    assert scene.told() == []


def test_before_leaving_all_that_is_left_is_told_once():
    scene = Scene()
    scene.join(0, 1)
    scene.told()
    call = scene.take_over.last("me")
    assert (call.name, call.partitions) == ("on_revoke", sorted(tps(0, 1)))
    scene.take_over.done(call)
    assert scene.take_over.last("me") is None


@pytest.mark.parametrize("handlers", [{}, {"on_assign": print}])
def test_without_a_handler_nothing_waits(handlers):
    scene = Scene(on_assign=handlers.get("on_assign"))
    scene.join(0)
    assert len(scene.told()) == len(handlers)
    scene.hear(generation=2)
    assert scene.told() == [] and not scene.reads()
