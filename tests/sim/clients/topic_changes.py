"""Operators who change topics while everything runs: they alter settings, and trim old messages by hand. Both
use the admin's own functions (ALTER_TOPIC, and TRIM as trimming sends it), over all groups.

Only one operator works on a topic at a time. Some die in the middle, and copies of some requests arrive much
later. In the end the last answered settings must be in force in every group, and trimmed messages must stay
trimmed; otherwise it is a ``lost-change``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from escrowmq.actors.admin.topic_creation import PartitionTrim, alter_topic, carry_out
from escrowmq.replication.model import TopicInfo, first_group, group_of
from tests.sim.clients.desk import Desk
from tests.sim.clients.workload import Cluster
from tests.sim.environment.replayed import Replayed, Submit
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication

SHARE = 0.3  # of schedules that have such operators: the checker cannot detect the loss of a trimmed message
PAUSE_S = 1.5  # from one change to the next, on average
DIES, DIES_S = 0.15, 0.5  # share of operators that die, and how soon
#: Share of requests that are copied, and how much later the copy arrives: also in the calm, but before the
#: final read.
COPIED, COPY_LATER_S = 0.15, (0.3, 1.0, 2.5)
#: Without the setting for transactions that no check answers: the history would have to know when the broker
#: decides for the application.
SETTINGS: tuple[dict[str, int | str], ...] = (
    {"retention_ms": -1},
    {"retention_ms": 3_000},
    {"retention_bytes": 2_000},
    {"retention_ms": 604_800_000, "retention_bytes": -1},
    {"transaction_timeout_ms": 200},
    {"transaction_timeout_ms": 1_500},
)


@dataclass(slots=True)
class _Work:
    """The work of one operator."""

    topic: str
    alive: bool = True


class TopicChanges:
    """The topic changes of one world. ``partitions``: the partitions of all its groups."""

    def __init__(self, clusters: Sequence[Cluster], partitions: Sequence[tuple[str, int]]) -> None:
        world = clusters[0].world
        self._desks, self._partitions = [Desk(one, "desk-of-topics") for one in clusters], partitions
        self._rng = world.stream("topics")
        self._works = self._rng.random() < SHARE
        self._next_s = 0.0
        self._busy: set[str] = set()
        self._settings: dict[str, TopicInfo] = {}  # as last answered, if no request was sent since
        self._firsts: dict[str, int] = {}
        self._starts: dict[tuple[str, int], int] = {}
        self.done: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """Number of requests that are not answered yet."""
        return sum(desk.waiting for desk in self._desks)

    # -------------------------------------------------------------- what operators do
    def act(self) -> None:
        """Change something, if it is time."""
        now_s = self._desks[0].world.elapsed_s
        if not self._works or now_s < self._next_s or self._desks[0].cluster.calm:
            return
        self._next_s = now_s + self._rng.expovariate(1 / PAUSE_S)
        leaders = [next((app for r, app in desk.leaders() if r.node.ready), None) for desk in self._desks]
        topic, number = self._rng.choice(self._partitions)
        states = [leader.replica.state for leader in leaders if leader is not None]
        there = len(states) == len(leaders) and all(topic in state.topics.topics for state in states)
        if not there or topic in self._busy:
            return
        self._firsts[topic] = first_group(states[0].topics.topics[topic].info)
        if self._rng.random() < 0.5:
            index = states[self._gid(topic, number)].topics.topics[topic].partitions[number].index
            before = self._rng.randint(index.start, index.end)
            self._trim(topic, PartitionTrim(number, index.start, before, index.end))
        else:
            values = self._rng.choice(SETTINGS)
            self._settings.pop(topic, None)
            self._begin(topic, lambda submit: alter_topic(submit, len(states), topic, values), self._altered)

    def _gid(self, topic: str, number: int) -> int:
        return group_of(self._firsts[topic], number, len(self._desks))

    def _altered(self, wanted: TopicInfo) -> None:
        self._settings[wanted.name] = wanted
        self.done["altered"] += 1

    def _trim(self, topic: str, plan: PartitionTrim) -> None:
        """Trim up to a random position in this leader's messages."""
        told = partial(self._trimmed, (topic, plan.partition), plan.before)
        self._begin(topic, lambda submit: carry_out(submit, self._gid, topic, [plan]), told)

    def _trimmed(self, tp: tuple[str, int], before: int, _: None) -> None:
        self._starts[tp] = max(before, self._starts.get(tp, 0))
        self.done["trimmed"] += 1

    # -------------------------------------------------------------- how they ask
    def _begin(self, topic: str, steps: Callable[[Submit], Any], then: Callable[[Any], None]) -> None:
        work = _Work(topic)

        def ended(result: Any) -> None:
            self._end(work)
            then(result)

        self._busy.add(topic)
        if self._rng.random() < DIES:
            self._desks[0].later(DIES_S * self._rng.random(), self._die, work)
        replayed = Replayed(
            steps,
            lambda *asked: self._ask(work, replayed, *asked),
            ended,
            lambda error: self._end(work),  # copies of its own requests keep altering the topic: it gives up
        )
        replayed.go_on()

    def _die(self, work: _Work) -> None:
        if work.alive:
            self.done["cut short"] += 1
            self._end(work)

    def _end(self, work: _Work) -> None:
        work.alive = False
        self._busy.discard(work.topic)

    def _ask(self, work: _Work, replayed: Replayed, gid: int, request: bytes) -> None:
        desk = self._desks[gid]

        def answered(results: list[Any]) -> None:
            code, *told = results[0]
            replayed.answered((code, told[0] if told else None))

        desk.call(request, answered, lambda: work.alive)
        if self._rng.random() < COPIED:
            pause_s = self._rng.choice(COPY_LATER_S) * (0.5 + self._rng.random())
            desk.later(pause_s, self._copy_arrives, desk, request)

    def _copy_arrives(self, desk: Desk, request: bytes) -> None:
        self.done["copied"] += 1
        desk.call(request, lambda results: None, lambda: True, once=True)

    # -------------------------------------------------------------- at the end
    def check(self, leaders: Sequence[BrokerApplication]) -> None:
        """At the end: compare with the leaders, one of each group, that have applied everything."""
        topics = [leader.replica.state.topics.topics for leader in leaders]
        for gid, there in enumerate(topics):
            for name, wanted in self._settings.items():
                if there[name].info.settings() != wanted.settings():
                    text = f"the last answer was {wanted}, and group {gid} has {there[name].info}"
                    raise Violation(text, "lost-change")
        for (name, number), wanted_start in self._starts.items():
            start = topics[self._gid(name, number)][name].partitions[number].index.start
            if start < wanted_start:
                text = f"{name}-{number} was trimmed to {wanted_start}, and begins at {start}"
                raise Violation(text, "lost-change")
