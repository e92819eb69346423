"""Topics that are created or deleted in entries which are not applied yet.

Entries name topics, which are looked up when they are applied. By then one of that name may be another one:
the deletion may be under way, and the creation behind it. What was prepared for the old topic, or found out
about it, must not reach the new one, so it is left out from the moment at which a deletion is written. A
deletion is written only when nothing of its name is under way to being created.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from escrowmq.replication.format.codec import OpType
from escrowmq.replication.replica.submission import AboutTopics, Submission
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Topic

#: In place of the id of a topic whose creation tells none.
NOT_TOLD = -1


class TopicsUnderWay:
    """Of one leader, in its thread. Holds what is under way and nothing else."""

    def __init__(self, state: StateMachine) -> None:
        self._state = state
        #: Topic, or slot of a partition -> deletions of it that may be in the log and are not applied yet.
        self.deleting: Counter[int | Topic] = Counter()
        #: Name and id of topics that are created in entries that are not applied yet.
        self.creating: Counter[tuple[str, int]] = Counter()

    def waits(self, submission: Submission) -> bool:
        """Whether it may delete a topic whose creation is under way: what goes would not be known, and what
        is committed to it meanwhile might reach the next one of that name. So it waits for a few entries."""
        for unit in submission.units:
            kind, meta = unit.ops[0].type, unit.ops[0].meta
            if kind == OpType.DELETE_TOPIC:
                ids = [i for name, i in self.creating if name == meta[0]]
            elif kind == OpType.CREATE_TOPIC and len(meta) > 3 and self._state.gid > 0:
                # With a later id it takes the place of what is there.
                ids = [i for name, i in self.creating if name == meta[0] and i != meta[3]]
            else:
                continue
            if ids:
                return True
        return False

    def note_creation(self, meta: Sequence[Any]) -> tuple[tuple[str, int], Sequence[int | Topic]]:
        """It is written: its name and id, and what goes by it, as by a deletion that was cut short here."""
        created = meta[0], meta[3] if len(meta) > 3 else NOT_TOLD
        self.creating[created] += 1
        replaces = len(meta) > 3 and self._state.topics.is_left_over(meta[0], meta[3])
        return created, self.note_deletion(meta[:1]) if replaces else ()

    def note_deletion(self, meta: Sequence[Any]) -> Sequence[int | Topic]:
        """It is written: from here on the topic that there is now counts as deleted, if it is the one that is
        meant. Returns what goes."""
        topic = self._state.topics.topics.get(meta[0])
        if topic is None or (len(meta) > 1 and not self._state.topics.is_meant(*meta)):
            return ()
        gone: list[int | Topic] = [topic, *(partition.slot for partition in topic.partitions.values())]
        self.deleting.update(gone)
        return gone

    def created(self, topics: Sequence[tuple[str, int]]) -> None:
        """These creations have ended."""
        self.creating -= Counter(topics)

    def deleted(self, gone: Sequence[int | Topic]) -> None:
        """These deletions are applied, or surely in no log."""
        self.deleting -= Counter(gone)

    def is_another(self, name: str, submission: Submission) -> bool:
        """Whether this name means, or may mean by the time it is applied, another topic than the request."""
        topic = self._state.topics.topics.get(name)
        if isinstance(submission, AboutTopics) and submission.topics[name] is not topic:
            return True
        return topic is not None and topic in self.deleting
