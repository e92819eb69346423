"""Operators who delete the consumer group while all of its members sleep; these then wake and commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from escrowmq.actors.client.consumer_groups import coordinator_group
from tests.sim.group.group_service import service_of
from tests.sim.recreated.members import SESSION_S, Member
from tests.sim.recreated.model import GROUP

if TYPE_CHECKING:
    from tests.sim.recreated.topic import RecreatedTopic

PAUSE_S = 4.0  # approximate time from one deletion to the next
TRIES = 3  # tries of one operator, since brokers sometimes refuse the deletion
AGAIN_S = 0.15


class GroupDeletions:
    """The deletions of the group in one world."""

    def __init__(self, topic: RecreatedTopic, members: Sequence[Member]) -> None:
        self._topic, self._members = topic, members
        self._rng = topic.desks[0].world.stream("deleted-group")
        self._gid = coordinator_group(GROUP, len(topic.desks))
        self._next_s = self._rng.expovariate(1 / PAUSE_S)

    def act(self) -> None:
        """Send the members to sleep, if it is time, and delete the group when their sessions have ended."""
        now_s = self._topic.desks[0].world.elapsed_s
        if now_s < self._next_s:
            return
        for member in self._members:
            member.asleep_until = now_s + SESSION_S * (1.1 + self._rng.random())
        self._next_s = now_s + 2 * SESSION_S + self._rng.expovariate(1 / PAUSE_S)
        self._topic.later(SESSION_S * (0.9 + 0.3 * self._rng.random()), self._delete, TRIES)

    def _delete(self, tries: int) -> None:
        found = self._topic.leader(self._gid)
        if not tries or self._topic.desks[0].cluster.calm:
            return
        if found is not None:
            replica, app = found
            service = service_of(self._topic.desks[0].world, replica, app)
            offsets = app.replica.state.group_offsets.get(GROUP, {})
            if service.delete(GROUP, {topic: dict(by) for topic, by in offsets.items()}):
                self._topic.done["group deleted"] += 1
                return
        self._topic.later(AGAIN_S, self._delete, tries - 1)
