"""The product's group service in a simulated broker process.

A process has one coordinator for all callers. A commit or a deletion goes through the simulated replica; its
answer goes to a callback, or the calling fibre waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

from escrowmq.actors.broker.group_service import GroupService
from escrowmq.replication.calling.answers import Leadership, Reply
from escrowmq.replication.format.settings import GroupSettings
from escrowmq.replication.host.requests import topics_of_commits
from escrowmq.replication.replica.validation import parse_request
from tests.sim.environment.fibres import Fibres
from tests.sim.environment.world import World
from tests.sim.group.broker_app import BrokerApplication, number_of
from tests.sim.group.replica import SimReplica

#: For so long a fibre waits for the log; then the outcome is unknown.
LOG_TAKES_S = 2.0


class SimGroupService:
    """The group service of one broker process. Answers from the log go to the last caller."""

    def __init__(self, world: World, replica: SimReplica, app: BrokerApplication) -> None:
        self._world, self._replica, self._app = world, replica, app
        self._done: Callable[[Reply], None] = lambda reply: None
        self._fibres: Fibres | None = None
        known = app.replica.state.topics.topics
        offsets = app.replica.state.group_offsets
        self.groups = GroupService(
            leadership=self._leadership,
            partitions=lambda topic: known[topic].info.partitions if topic in known else None,
            committed=lambda group: offsets.get(group, {}),
            group_names=lambda: list(offsets),
            submit=self._submit,
            clock=lambda: world.now,
            which=known.get,
            last_void=lambda group: app.replica.state.deleted_groups.last_void(group),
            settings=self._settings,
        )
        app.beside.append(self.groups)

    def _leadership(self) -> Leadership:
        node = self._replica.node
        return Leadership(node.ready, number_of(self._replica.name), node.term)

    def _settings(self, group: str) -> GroupSettings | None:
        found = self._app.replica.state.shares.groups.get(group)
        return None if found is None else found.settings

    def commit(
        self,
        group: str,
        member: str,
        generation: int,
        offsets: dict[str, dict[int, int]],
        done: Callable[[Reply], None],
    ) -> Reply:
        """Commit a member's offsets. ``("queued",)`` means that ``done`` gets the answer."""
        self._done = done
        return self.groups.commit(group, member, generation, offsets)

    def delete(self, group: str, places: dict[str, dict[int, int]]) -> bool:
        """Delete the group; returns whether the deletion is on its way to the log."""
        self._done = lambda reply: None
        return self.groups.delete(group, places) == ("unknown",)

    def waiting(self, fibres: Fibres, call: Callable[[GroupService], Reply]) -> Reply:
        """A call in a fibre, which waits for the log."""
        self._fibres = fibres
        try:
            return call(self.groups)
        finally:
            self._fibres = None  # if the call had nothing for the log

    def _submit(self, request: bytes, turn: Callable[[Callable[[], None]], Reply | None]) -> Reply:
        app, replica, done = self._app, self._replica, self._done
        fibres, self._fibres = self._fibres, None
        answers: list[Reply] = []
        if fibres is not None:
            fibre = fibres.current()

            def done(reply: Reply) -> None:
                answers.append(reply)
                fibres.wake(fibre)

        frames = parse_request(request)
        about = topics_of_commits(frames, app.replica.state.topics.topics)
        refused = turn(lambda: replica.guarded(lambda: app.replica.submit(request, frames, done, about)))
        if refused is None and replica.up:
            replica.kick()
        if refused is not None:
            return refused
        if fibres is None:
            return ("queued",) if about else ("unknown",)
        until = self._world.now + LOG_TAKES_S
        while not answers and self._world.now < until:
            fibres.wait(until - self._world.now)
        return answers[0] if answers else ("unknown",)


def service_of(world: World, replica: SimReplica, app: BrokerApplication) -> SimGroupService:
    """The service of this process; it stays the same as long as the process lives.

    The process keeps it: in a table of its own it would never go, since it leads back to the process.
    """
    if app.group_service is None:
        app.group_service = SimGroupService(world, replica, app)
    service: SimGroupService = app.group_service
    return service
