"""Somebody who looks for stable cuts in a world of several groups; at the end each is held against what was
read: of every transaction all messages lie below the cut, or none (``cut-torn``)."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from escrowmq.actors.admin.stable_cut import Ask, Cut, find_stable_cut
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.replication.calling.answers import GroupCut
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format.ops import cut
from escrowmq.replication.model import ResultCode
from tests.history.subjects import Tx
from tests.sim.across.turns import WorldTurns
from tests.sim.environment.world import Violation

if TYPE_CHECKING:
    from tests.sim.across.workload import AcrossWorkload

#: Share of the clients' steps at which one begins, unless one is under way.
BEGINS = 0.3
Steps = Generator[Ask, Mapping[int, GroupCut], Cut]


class Cutting:
    """``cuts``: those that were found. One is looked for at a time."""

    def __init__(self, clients: AcrossWorkload) -> None:
        scene, world = clients.scene, clients.many.world
        info = ClusterInfo("sim", "sim", scene.groups, scene.size)
        # Of its own, so that the schedule of everybody else does not depend on it.
        self._rng = world.stream("cutting")
        self._turns = WorldTurns(world, clients.wire, info, ChannelConfig(), world.stream("cutting-calls"))
        self._clients, self._timeout_s = clients, scene.delivery_timeout_s
        self._looking = False
        self.cuts: list[Cut] = []

    def act(self) -> None:
        """Perhaps begin to look for a cut."""
        if self._looking or self._rng.random() > BEGINS:
            return
        scene, self._looking = self._clients.scene, True
        steps = find_stable_cut(sorted(scene.topics), scene.groups)
        self._ask(steps, next(steps))

    def _ask(self, steps: Steps, ask: Ask) -> None:
        if ask.pause_s:
            self._clients.later(ask.pause_s, self._ask, steps, ask._replace(pause_s=0.0))
            return
        found: dict[int, GroupCut] = {}
        for gid in ask.groups:
            future = self._turns.submit(gid, cut(ask.topics, ask.hold_ms), timeout_s=self._timeout_s)
            future.add_done_callback(lambda future, gid=gid: self._told(steps, ask, found, gid, future))

    def _told(self, steps: Steps, ask: Ask, found: dict[int, GroupCut], gid: int, future: Any) -> None:
        if future.exception() is not None:  # no leader
            self._looking = False
            return
        ((code, answer),) = future.result()
        if code == ResultCode.UNKNOWN_TOPIC:
            self._looking = False
            return
        found[gid] = GroupCut(*answer)
        if len(found) < len(ask.groups):
            return
        try:
            self._ask(steps, steps.send(found))
        except StopIteration as end:
            self._looking = False
            self.cuts.append(end.value)
            self._clients.did["stable cut"] += 1
        except Unavailable:
            self._looking = False

    def check(self) -> None:
        """After everything was read."""
        checker = self._clients.ledger.recorder.checker
        parts: dict[Tx, list[tuple[str, int, int]]] = {}
        for message in checker.messages.values():
            if message.place is not None and isinstance(message.owner, Tx):
                parts.setdefault(message.owner, []).append(message.place)
        for number, ends in enumerate(self.cuts):
            for tx, offsets in parts.items():
                below = {offset < ends[topic, p] for topic, p, offset in offsets if (topic, p) in ends}
                if len(below) > 1:
                    raise Violation(f"{tx} lies below stable cut {number} in part: {offsets}", "cut-torn")
