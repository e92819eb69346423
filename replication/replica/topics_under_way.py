"""Topics that are created or deleted in entries that are not applied yet.

Entries name topics, and a name is looked up when its entry is applied. By then it may belong to another
topic: a deletion may be under way, and a creation after it. Messages prepared for the old topic, and
decisions based on it, must not reach the new one, so they are left out as soon as a deletion is written. A
deletion is written only when no creation of its name is under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from escrowmq.replication.format.codec import OpType
from escrowmq.replication.replica.submission import AboutTopics, Submission
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Topic

#: Stands for the id of a topic whose creation states none.
NOT_TOLD = -1


class TopicsUnderWay:
    """The topics under way at one leader. Used in its thread. Finished operations are forgotten."""

    def __init__(self, state: StateMachine) -> None:
        self._state = state
        #: Topic, or slot of a partition -> deletions of it that may be in the log and are not applied yet.
        self.deleting: Counter[int | Topic] = Counter()
        #: Name and id of topics whose creation may be in the log and is not applied yet.
        self.creating: Counter[tuple[str, int]] = Counter()

    def forget(self) -> None:
        """Leadership is lost: the next leader applies everything in its log before it composes an entry."""
        self.deleting.clear()
        self.creating.clear()

    def waits(self, submission: Submission) -> bool:
        """Whether it may delete a topic whose creation is under way. It then waits for a few entries:
        otherwise the slots to delete would not be known, and messages committed to the topic meanwhile might
        reach the next topic of that name. Also if the creation was given up: then it waits until a majority
        has that entry, or leadership is lost. Nothing behind it would be applied earlier."""
        for unit in submission.units:
            kind, meta = unit.ops[0].type, unit.ops[0].meta
            if kind == OpType.DELETE_TOPIC:
                ids = [i for name, i in self.creating if name == meta[0]]
            elif kind == OpType.CREATE_TOPIC and len(meta) > 3 and self._state.gid > 0:
                # A topic with a later id replaces the present one.
                ids = [i for name, i in self.creating if name == meta[0] and i != meta[3]]
            else:
                continue
            if ids:
                return True
        return False

    def note_creation(self, meta: Sequence[Any]) -> tuple[tuple[str, int], Sequence[int | Topic]]:
        """A creation is written: notes its name and id, and the earlier topic that it replaces, if an
        interrupted deletion left one here."""
        created = meta[0], meta[3] if len(meta) > 3 else NOT_TOLD
        self.creating[created] += 1
        replaces = len(meta) > 3 and self._state.topics.is_left_over(meta[0], meta[3])
        return created, self.note_deletion(meta[:1]) if replaces else ()

    def note_deletion(self, meta: Sequence[Any]) -> Sequence[int | Topic]:
        """A deletion is written: from here on the present topic counts as deleted, if it is the one that is
        meant. Returns the topic and its slots."""
        topic = self._state.topics.topics.get(meta[0])
        if topic is None or (len(meta) > 1 and not self._state.topics.is_meant(*meta)):
            return ()
        gone: list[int | Topic] = [topic, *(partition.slot for partition in topic.partitions.values())]
        self.deleting.update(gone)
        return gone

    def created(self, topics: Sequence[tuple[str, int]]) -> None:
        """These creations are applied, or certainly in no log."""
        self.creating -= Counter(topics)

    def deleted(self, gone: Sequence[int | Topic]) -> None:
        """These deletions are applied, or certainly in no log."""
        self.deleting -= Counter(gone)

    def is_another(self, name: str, submission: Submission) -> bool:
        """Whether the name belongs, or may belong when it is applied, to another topic than the request's."""
        topic = self._state.topics.topics.get(name)
        if isinstance(submission, AboutTopics) and submission.topics[name] is not topic:
            return True
        return topic is not None and topic in self.deleting
