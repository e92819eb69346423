"""Operators who delete a share group under its members, with the admin's own functions.

Leaders refuse that while members hold or want messages, and are asked before anything is deleted. So all
members stop for longer than their leases run, and wake up meanwhile or later, with what they had: they begin
the group again, as they were told. A leader is killed between the deletion of the group and that of its
topics of retries and dead letters, or the operator dies there, and another one repeats the whole call. In the
history each call that was not refused at once may begin another life of the group (tests/history/sharing.py).

Not drawn: copies of these requests that arrive when the group exists again and all of its members stand
still. A leader would delete it once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from escrowmq.actors.admin.group_changes import delete_share_group, delete_topics
from escrowmq.actors.client.share_groups import Submit, create_internal_topic, of_kind, set_group
from escrowmq.replication.errors import ConfigError, EscrowMQError, GroupNotEmpty, UnknownGroup
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.format.settings import SHARE as KIND
from escrowmq.replication.format.settings import Value
from tests.sim.environment.replayed import Replayed
from tests.sim.sharing.records import named

if TYPE_CHECKING:
    from tests.sim.sharing.groups import ShareGroups

SHARE = 0.3  # of worlds with share groups, in which one of the groups is deleted now and then
EVERY_S = 2.0  # from one deletion to the next, on average
SLEEP_S = (0.8, 1.5, 2.5)  # how long members stand still
AGAIN_S, ATTEMPTS = 0.15, 20  # pause after a refusal, and when the operator gives up
#: Between the deletion of the group and that of its topics: how often the leader is killed, or the operator
#: dies, and how long it takes until the call is repeated.
KILLED, DIES, REPEATED_S = 0.4, 0.3, (0.0, 0.3, 1.0)


def internal_topics(group: str) -> tuple[str, str]:
    """The topics that belong to a group."""
    return retry_topic(group), dead_topic(group)


class GroupDeletions:
    """The deletions of one group in one world. ``settings`` are given to it again after each."""

    def __init__(self, world: ShareGroups, groups: tuple[str, ...], settings: dict[str, Value]) -> None:
        self._world, self._settings = world, settings
        self._rng = world.desks[0].world.stream("deletions-of-groups")
        works = self._rng.random() < SHARE
        #: The group that is deleted; None: this world has no such operator.
        self.group = self._rng.choice(groups) if works else None
        self.busy = False
        self._next_s, self._attempts = -1.0, 0
        self._ops: list[int] = []  # calls of this deletion in the history
        self._of_topics = False  # the request that is sent next belongs to the second half of the call
        #: Changes whenever another life of the group may begin, or may have begun.
        self.life = 0

    def act(self, now_s: float) -> None:
        """Begin with the next deletion, if it is time."""
        if self.group is None or self.busy or self._world.changes.changing == self.group:
            return
        if self._next_s < 0:
            self._next_s = now_s + self._rng.expovariate(1 / EVERY_S)
        if now_s < self._next_s:
            return
        self.busy, self._attempts = True, 0
        self._world.sleep(self.group, self._rng.choice(SLEEP_S) * (0.5 + self._rng.random()))
        self._world.desks[0].later(0.3 + self._rng.random(), self._call)

    def _another_life(self) -> None:
        assert self.group is not None
        self.life += 1
        self._world.forget(self.group)

    # -------------------------------------------------------------- the call

    def _call(self) -> None:
        """The whole call, from the beginning."""
        self._attempts += 1
        known, killed, members = self._known(), self._rng.random(), self._members()
        if known is None or members is None:  # nobody can be asked
            self._again()
            return
        if members:
            self._ended(known, "refused")
            return
        self._ops.append(self._world.recorder.invoke("share-delete", group=self.group))
        self._another_life()
        asked = False

        def ask(gid: int, request: bytes) -> None:
            nonlocal asked
            first, asked = self._of_topics and not asked, asked or self._of_topics
            if first and killed < DIES and not self._world.calm:
                self._world.done["deletions interrupted"] += 1
                self._world.desks[0].later(self._rng.choice(REPEATED_S), self._call)
                return
            if first and killed < DIES + KILLED and not self._world.calm:
                self._kill(gid)
            self._world.ask(gid, request, replayed)

        ended = partial(self._ended, known)
        replayed = Replayed(partial(self._steps, known), ask, ended, lambda error: self._again())
        replayed.go_on()

    def _known(self) -> dict[str, int] | None:
        """The ids of the group's topics, by group 0."""
        assert self.group is not None
        found = next((app for r, app in self._world.desks[0].leaders() if r.node.ready), None)
        if found is None:
            return None
        topics = found.replica.state.topics.topics
        return {name: topics[name].info.topic_id for name in internal_topics(self.group) if name in topics}

    def _members(self) -> list[str] | None:
        """Who holds or wants messages of the group; None: some leader cannot be asked."""
        assert self.group is not None
        members: list[str] = []
        for desk in self._world.desks:
            leader = next((app for replica, app in desk.leaders() if replica.node.ready), None)
            if leader is None:
                return None
            members += leader.replica.lease_dispatcher.members(self.group)
        return members

    def _steps(self, known: dict[str, int], submit: Submit) -> str:
        """As ``delete_group`` does it."""
        assert self.group is not None
        groups = len(self._world.desks)
        self._of_topics = False
        try:
            delete_share_group(submit, groups, self.group, "simulated")
        except GroupNotEmpty:
            return "refused"
        except UnknownGroup:
            pass
        self._of_topics = True
        try:
            delete_topics(submit, groups, self.group, known)
        except ConfigError:  # the group exists again
            return "made again"
        return "deleted"

    def _kill(self, gid: int) -> None:
        """The leader to which the next request would go."""
        desk = self._world.desks[gid]
        found = desk.any_leader()
        if found is not None:
            self._world.done["killed amid a deletion"] += 1
            desk.cluster.crash(found[0], self._rng.random() < 0.5, self._rng)

    def _again(self) -> None:
        self._world.desks[0].later(AGAIN_S, self._call)

    def _ended(self, known: Mapping[str, int], how: str) -> None:
        if how == "refused" and self._attempts < ATTEMPTS and not self._world.calm:
            self._again()
            return
        self._world.done[f"groups {how}"] += 1
        self._restore([named(*topic) for topic in known.items()] if how == "deleted" else None)

    def _restore(self, gone: list[str] | None) -> None:
        """Give it its settings again. ``gone``: the topics that were deleted, as the history calls them;
        None: perhaps not all, so those that are not there any more in some group are created."""
        assert self.group is not None
        group, groups = self.group, len(self._world.desks)

        def steps(submit: Submit) -> None:
            set_group(submit, groups, group, self._settings)
            for name in internal_topics(group) if gone is None else ():
                self._world.ids[name] = create_internal_topic(submit, groups, name)

        def over(result: object = None) -> None:
            for op in self._ops:
                self._world.recorder.ok(op, topics=gone or [])
            self._ops.clear()
            told = {key: self._settings[key] for key in ("max_attempts", "delays_ms")}
            self._world.recorder.ok(self._world.recorder.invoke("share-group", group=group, **told))
            self._another_life()
            self.busy = False
            self._next_s = self._world.desks[0].world.elapsed_s + self._rng.expovariate(1 / EVERY_S)

        def once_more(error: EscrowMQError) -> None:
            self._world.desks[0].later(AGAIN_S, self._restore, gone)

        replayed = Replayed(steps, lambda *asked: self._world.ask(*asked, replayed), over, once_more)
        replayed.go_on()


class Making:
    """What a member does whose group was deleted, before it begins with a partition: the first half of what
    creating a consumer does."""

    def __init__(self, world: ShareGroups) -> None:
        self._world = world
        self._waiting: dict[str, list[Callable[[], None]]] = {}  # of groups that are being made

    def make(self, group: str, then: Callable[[], None]) -> None:
        """Make it a share group with topics of its own again, and then go on."""
        if group in self._waiting:
            self._waiting[group].append(then)
            return
        self._waiting[group] = [then]
        groups = len(self._world.desks)
        replayed = Replayed(
            lambda submit: make(submit, groups, group),
            lambda *asked: self._world.ask(*asked, replayed),
            partial(self._made, group),
            lambda error: self._made(group, None),
        )
        replayed.go_on()

    def _made(self, group: str, ids: dict[str, int] | None) -> None:
        self._world.ids |= ids or {}
        self._world.done["groups made again"] += 1
        for then in self._waiting.pop(group):
            then()


def make(submit: Submit, groups: int, group: str) -> dict[str, int] | None:
    """As share consumers do it; returns the ids of its topics. None: it did not succeed, and the caller will
    try again when it notices that."""
    try:
        of_kind(submit, groups, group, KIND)
        return {name: create_internal_topic(submit, groups, name) for name in internal_topics(group)}
    except EscrowMQError as error:
        if "was refused" in str(error) or "interrupted" in str(error):
            return None
        raise
