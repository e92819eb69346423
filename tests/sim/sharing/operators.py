"""Operators while share groups are in use: one deletes a topic and creates it again, one changes the settings
of a group whose messages wait for their next attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.actors.client.share_groups import set_group
from escrowmq.replication.format import ops
from escrowmq.replication.format.settings import GroupSettings, Value
from escrowmq.replication.model import NO_ID, ResultCode
from escrowmq.replication.state.shares import Shares
from tests.sim.clients.desk import Desk
from tests.sim.environment.replayed import Replayed
from tests.sim.environment.world import Violation
from tests.sim.faults.plan import RECREATED
from tests.sim.sharing.records import CHORES

if TYPE_CHECKING:
    from tests.sim.sharing.groups import ShareGroups

#: Approximate life of the topic, time until it is there again, and time between two changes of settings.
LIFE_S, GONE_S, CHANGE_S = 1.5, 0.1, 1.5
COPIED, COPY_LATER_S = 0.3, (0.3, 1.0, 2.5)
#: What groups are given. All have a table of delays, so that the history knows of which.
CHANGES: tuple[dict[str, Value], ...] = (
    {"max_attempts": 2, "delays_ms": [50, 200]},
    {"max_attempts": 4, "delays_ms": [100, 100, 800]},
    {"max_attempts": 3, "delays_ms": [50, 200, 500]},
)
DELETED = (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.UNKNOWN_TOPIC, ResultCode.OTHER_TOPIC)
CREATED = (ResultCode.OK, ResultCode.DUPLICATE)


def copy_arrives(desk: Desk, request: bytes) -> None:
    """Much later than the request; nobody waits for its answer."""
    desk.call(request, lambda results: None, lambda: True, once=True)


class TopicDeletions:
    """Deletes CHORES, in all broker groups, and creates it again, unless it is gone for good. One step at a
    time, in this order."""

    def __init__(self, world: ShareGroups) -> None:
        self._world = world
        self._rng = world.desks[0].world.stream("deletions-of-sharing")
        self._busy, self._next_s = False, -1.0

    def act(self, now_s: float) -> None:
        """Begin with the next deletion, if it is time."""
        if self._next_s < 0:
            self._next_s = now_s + self._rng.expovariate(1 / LIFE_S)
        if not self._busy and now_s >= self._next_s:
            self._busy = True
            self._in_all(ops.delete_topic(CHORES, self._world.ids.pop(CHORES)), 0, self._deleted)

    def _in_all(self, request: bytes, gid: int, then: Callable[[], None]) -> None:
        """The same in this broker group and in those behind it."""
        world = self._world
        if gid == len(world.desks):
            then()
            return

        def answered(results: list[Any]) -> None:
            if results[0][0] not in DELETED:
                raise Violation(f"a deletion was answered {results}", "unexpected-answer")
            world.desks[gid].cluster.struck(RECREATED, CHORES)
            self._in_all(request, gid + 1, then)

        world.desks[gid].call(request, answered, lambda: True)
        if self._rng.random() < COPIED:
            pause_s = self._rng.choice(COPY_LATER_S) * (0.5 + self._rng.random())
            world.desks[gid].later(pause_s, copy_arrives, world.desks[gid], request)

    def _deleted(self) -> None:
        self._world.done["deleted"] += 1
        if self._world.layout.for_good():
            self._world.done["gone for good"] += 1
            return
        pause_s = self._rng.expovariate(1 / GONE_S)
        self._world.desks[0].later(pause_s, self._create, 0, NO_ID)

    def _create(self, gid: int, topic_id: int) -> None:
        """First in group 0, which gives it an id."""
        world = self._world
        if gid == len(world.desks):
            world.ids[CHORES] = topic_id
            self._busy = False
            self._next_s = world.desks[0].world.elapsed_s + self._rng.expovariate(1 / LIFE_S)
            return

        def created(results: list[Any]) -> None:
            if results[0][0] not in CREATED:
                raise Violation(f"a creation was answered {results}", "unexpected-answer")
            self._create(gid + 1, topic_id or results[0][1])

        settings = topic_settings(self._world.layout.partitions[CHORES], transaction_timeout_ms=500)
        world.desks[gid].call(ops.create_topic(CHORES, settings, 0, topic_id), created, lambda: True)


class SettingsChanges:
    """Changes of the groups' settings, by the clients' own function. One at a time."""

    def __init__(self, world: ShareGroups, groups: Sequence[str]) -> None:
        self._world, self._groups = world, groups
        self._rng = world.desks[0].world.stream("settings-of-sharing")
        self._busy, self._next_s = False, -1.0
        self._last: dict[str, GroupSettings] = {}  # as last answered
        self.changing: str | None = None  # the group whose settings are being changed

    def act(self, now_s: float) -> None:
        """Begin with the next change, if it is time."""
        if self._next_s < 0:
            self._next_s = now_s + self._rng.expovariate(1 / CHANGE_S)
        if self._busy or now_s < self._next_s:
            return
        self._busy, world = True, self._world
        group, values = self._rng.choice(self._groups), self._rng.choice(CHANGES)
        if world.deletions.busy and group == world.deletions.group:
            self._rest()
            return
        self.changing = group
        self._last.pop(group, None)
        op = world.recorder.invoke("share-group", group=group, **values)

        def changed(settings: GroupSettings) -> None:
            world.done["settings changed"] += 1
            world.recorder.ok(op)
            self._last[group] = settings
            self._rest()

        replayed = Replayed(
            lambda submit: set_group(submit, len(world.desks), group, values),
            lambda gid, request: self._ask(replayed, gid, request),
            changed,
            lambda error: self._rest(),
        )
        replayed.go_on()

    def forget(self, group: str) -> None:
        """It is being deleted."""
        self._last.pop(group, None)

    def _rest(self) -> None:
        self._busy, self.changing = False, None
        self._next_s = self._world.desks[0].world.elapsed_s + self._rng.expovariate(1 / CHANGE_S)

    def _ask(self, replayed: Replayed, gid: int, request: bytes) -> None:
        desk = self._world.desks[gid]
        desk.call(request, lambda results: replayed.answered(tuple(results[0])), lambda: True)
        if self._rng.random() < COPIED:
            pause_s = self._rng.choice(COPY_LATER_S) * (0.5 + self._rng.random())
            desk.later(pause_s, copy_arrives, desk, request)

    def check(self, found: Sequence[Shares]) -> None:
        """At the end: every broker group has what was answered last."""
        for group, wanted in self._last.items():
            for gid, shares in enumerate(found):
                if (settings := shares.settings(group)) != wanted:
                    text = f"the last answer of {group} was {wanted}; group {gid} has {settings}"
                    raise Violation(text, "lost-change")
