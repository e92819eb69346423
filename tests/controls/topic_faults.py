"""Planted faults in what operators change: topics, trims by hand, how long ids are remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from escrowmq.actors.broker import coordinator
from escrowmq.actors.broker.coordinator import GroupCoordinator
from escrowmq.replication.format.codec import Op
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import NO_ID, TopicInfo
from escrowmq.replication.replica import replica
from escrowmq.replication.replica.checkpoints import Checkpoints
from escrowmq.replication.replica.compaction import RetentionRound
from escrowmq.replication.replica.entry_writing import TopicsUnderWay
from escrowmq.replication.state import machine, snapshot
from escrowmq.replication.state.group_offsets import GroupOffsets
from escrowmq.replication.state.machine import OK, StateMachine
from escrowmq.replication.state.topics import TopicTable
from tests.controls.planting import plant
from tests.controls.scenes import FORGETFUL, world
from tests.controls.state_faults import rewire
from tests.sim.clients import topic_changes
from tests.sim.group import broker_app
from tests.sim.recreated import clients as recreated_clients
from tests.sim.recreated import group as recreated_group
from tests.sim.recreated import topic as recreated_topic

CHANGED = "state-differs", "restart-differs", "lost-change", "unexpected-answer"
Settings = Mapping[str, int | str]
SNAPSHOTS = {"snapshot": 40, "roll": 40, "kill": 30}


def changed_often(patch: pytest.MonkeyPatch) -> None:
    """In every schedule an operator changes topics several times a second, and most requests arrive again."""
    patch.setattr(topic_changes, "SHARE", 1.0)
    patch.setattr(topic_changes, "PAUSE_S", 0.1)
    patch.setattr(topic_changes, "COPIED", 0.7)


@plant("alter-without-effect", *CHANGED, start=3, conditions=changed_often)
def alter_without_effect(patch: pytest.MonkeyPatch) -> None:
    """New settings of a topic are acknowledged, but the old ones stay in force."""
    alter = TopicTable.alter

    def without(self: TopicTable, index: int, name: str, settings: Settings, *number: Any) -> list[object]:
        before = self.topics[name].info
        result = alter(self, index, name, settings, *number)
        self.topics[name].info = before
        return result

    patch.setattr(TopicTable, "alter", without)


@plant("late-alteration-counts", *CHANGED, within=60, start=28, conditions=changed_often)
def late_alteration_counts(patch: pytest.MonkeyPatch) -> None:
    """An alteration that arrives late undoes newer ones."""
    alter = TopicTable.alter

    def again(self: TopicTable, index: int, name: str, settings: Settings, *number: Any) -> list[object]:
        newest = self.topics[name].altered + (self.gid > 0)
        return alter(self, index, name, settings, *((newest, *number[1:]) if settings else number))

    patch.setattr(TopicTable, "alter", again)


@plant("trim-without-effect", "lost-change", conditions=changed_often, start=9)
def trim_without_effect(patch: pytest.MonkeyPatch) -> None:
    """A trim is acknowledged, but nothing is removed."""
    rewire(patch, OpType.TRIM, lambda self, index, op: OK)


@plant("snapshot-of-first-settings", *CHANGED, start=3, conditions=changed_often)
def snapshot_of_first_settings(patch: pytest.MonkeyPatch) -> None:
    """A snapshot holds the settings with which a topic was created, and not the current ones."""
    first: dict[str, TopicInfo] = {}
    alter, begin = TopicTable.alter, Checkpoints.begin

    def noted(self: TopicTable, index: int, name: str, *asked: Any) -> list[object]:
        first.setdefault(name, self.topics[name].info)
        return alter(self, index, name, *asked)

    def begun(self: Checkpoints, state: StateMachine, term: int) -> None:
        begin(self, state, term)
        assert self._capture is not None
        whole = self._capture.snapshot
        topics = [(first.get(info.name, info), count) for info, count in whole.topics]
        self._capture.snapshot = replace(whole, topics=topics)

    patch.setattr(TopicTable, "alter", noted)
    patch.setattr(Checkpoints, "begin", begun)


@plant(
    *("snapshot-without-what-is-forgotten", *CHANGED, "committed-twice", "duplicate"),
    groups=2,
    often=SNAPSHOTS,
    conditions=world(FORGETFUL),
    start=1,
)
def snapshot_without_what_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A snapshot does not say up to when settled transactions are forgotten: late copies open them again."""
    meta = snapshot._meta

    def without(*args: Any) -> dict[str, Any]:
        whole = meta(*args)
        return whole | {"forgotten_ms": -1} if "forgotten_ms" in whole else whole

    patch.setattr(snapshot, "_meta", without)


def recreated_often(patch: pytest.MonkeyPatch) -> None:
    """In every schedule a topic is deleted and created again, several times a second."""
    patch.setattr(recreated_topic, "SHARE", 1.0)
    patch.setattr(recreated_topic, "LIFE_S", 0.3)
    patch.setattr(recreated_topic, "PAUSE_S", 0.01)
    patch.setattr(recreated_topic, "HASTY", 0.8)
    patch.setattr(recreated_topic, "COPIED", 0.8)
    patch.setattr(recreated_clients, "COPIED", 0.5)
    patch.setattr(recreated_group, "PAUSE_S", 1.0)
    patch.setattr(coordinator, "REJOIN_GRACE_S", 0.1)


@plant(
    *("deletion-not-noted", "namesake", "old-place", "cut-early"),
    within=60,
    start=49,
    conditions=recreated_often,
)
def deletion_not_noted(patch: pytest.MonkeyPatch) -> None:
    """A leader composes entries by the topics that it has applied, while a deletion and a creation are under
    way."""
    patch.setattr(TopicsUnderWay, "note_deletion", lambda *args: ())


@plant("name-for-the-topic", "old-place", "cut-early", conditions=recreated_often, start=53)
def name_for_the_topic(patch: pytest.MonkeyPatch) -> None:
    """A group's offset or a cut that was right for a topic is applied to another topic that has its name by
    then."""
    patch.setattr(TopicsUnderWay, "is_another", lambda *args: False)


@plant("group-0-rises-first", "level-order", groups=2, conditions=world({"rises_at_s": 0.5}))
def group_0_rises_first(patch: pytest.MonkeyPatch) -> None:
    """Group 0 reaches a format level before the other groups."""
    patch.setattr(replica, "ahead_of", lambda gid, found: ())


def retained_briefly(patch: pytest.MonkeyPatch) -> None:
    """A topic that is written to all the time is deleted and created again. It keeps its messages for a
    moment or forever, and rounds of retention follow one another."""
    recreated_often(patch)
    patch.setattr(recreated_topic, "LIFE_S", 0.6)
    patch.setattr(recreated_topic, "RETENTION_MS", (-1, 200))
    patch.setattr(recreated_clients, "PAUSE_S", 0.02)
    patch.setattr(recreated_clients, "PLAIN", 0.9)
    patch.setattr(broker_app, "RETENTION_INTERVAL_MS", 100)
    patch.setattr(broker_app, "RETENTION_PAUSE_MS", 50)


@plant("cut-of-the-namesake", "cut-early", conditions=retained_briefly, start=10)
def cut_of_the_namesake(patch: pytest.MonkeyPatch) -> None:
    """A round of retention cuts what it has found in a topic from another one that has its name by now."""
    patch.setattr(
        RetentionRound, "_is_there", lambda self, topic: topic.info.name in self._state.topics.topics
    )


@plant("place-by-name", "old-place", start=10, conditions=recreated_often)
def place_by_name(patch: pytest.MonkeyPatch) -> None:
    """A consumer group's coordinator takes a new topic for the deleted one of the same name that its members
    read before."""
    patch.setattr(GroupCoordinator, "_renewed", lambda *args: frozenset())


@plant("places-outlive-their-topic", "lost-offset", "old-place", start=10, conditions=recreated_often)
def places_outlive_their_topic(patch: pytest.MonkeyPatch) -> None:
    """Consumer groups keep their offsets in a topic that is deleted."""
    patch.setattr(GroupOffsets, "drop_topic", lambda self, topic: None)


@plant("late-deletion-counts", "namesake", "lost-topic", conditions=recreated_often, start=11)
def late_deletion_counts(patch: pytest.MonkeyPatch) -> None:
    """A topic's deletion deletes any topic that has its name when the deletion arrives."""
    patch.setattr(TopicTable, "is_meant", lambda self, name, topic_id: name in self.topics)


@plant("late-batch-in-a-namesake", "namesake", conditions=recreated_often, start=14)
def late_batch_in_a_namesake(patch: pytest.MonkeyPatch) -> None:
    """A batch that arrives after its topic was deleted is stored in another topic of the same name."""
    inner = StateMachine._message

    def message(self: StateMachine, index: int, op: Op) -> Any:
        return inner(self, index, op._replace(meta=msgspec.structs.replace(op.meta, topic_id=NO_ID)))

    rewire(patch, OpType.MESSAGE, message)


@plant("late-prepare-in-a-namesake", "namesake", "unresolved", conditions=recreated_often, start=14)
def late_prepare_in_a_namesake(patch: pytest.MonkeyPatch) -> None:
    """A transaction prepared for a deleted topic is prepared in another topic that has its name by then."""
    inner = machine.rows_of

    def by_name(topics: TopicTable, attached: Sequence[Op]) -> Any:
        anywhere = [op._replace(meta=msgspec.structs.replace(op.meta, topic_id=NO_ID)) for op in attached]
        return inner(topics, anywhere)

    patch.setattr(machine, "rows_of", by_name)
