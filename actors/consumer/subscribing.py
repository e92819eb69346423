"""Starting to read: the calls to brokers before a subscription is in force, and while it follows a pattern.

With "latest", an offset is determined and committed before ``subscribe`` returns, so that nothing sent
afterwards is skipped. A topic that a pattern finds later was created after that, so its first offset is its
beginning, whichever member of the group finds it first. Blocking calls, each bounded; knows nothing of
threads or of callers that wait.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from escrowmq.actors.client.catalog import TopicCatalog
from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.offsets import Lookup, OffsetReader
from escrowmq.replication.calling.answers import TopicNames
from escrowmq.replication.errors import EscrowMQError, InvalidMessage, UnknownTopic
from escrowmq.replication.model import TopicInfo

# ------------------------------------------------------------------------------------------------------------
# Subscribing to a pattern: the topics that match it now, from the changes that group 0's leader reports.
#
# The request is small. So is its answer, unless topics were created, deleted or altered since the last one:
# then it contains all names. This module only decides; the membership thread asks, and joins with the result.

#: Names of topics that EscrowMQ creates for itself begin with this, and match no pattern.
INTERNAL = "__"


class TopicPattern:
    """One pattern and the topics that match it, in order. Used by one thread at a time."""

    def __init__(self, pattern: str | re.Pattern[str]) -> None:
        """Raises InvalidMessage unless it is a regular expression over text."""
        try:
            self._expression = re.compile(pattern)
            self._expression.fullmatch("")
        except (re.error, TypeError, OverflowError, RecursionError) as error:
            raise InvalidMessage(f"pattern must be a regular expression, not {pattern!r}: {error}") from error
        #: The term and version that the next request states as known: none at first and for a new leader.
        self.known = 0, 0
        self.topics: tuple[str, ...] = ()
        #: Topics that match but are not read yet, because not every broker group has created them.
        self.late: tuple[str, ...] = ()

    def matching(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names that match the pattern from beginning to end."""
        match = self._expression.fullmatch
        return tuple(sorted(name for name in names if not name.startswith(INTERNAL) and match(name)))

    def found(self, answer: TopicNames) -> tuple[str, ...]:
        """The topics that match according to this answer, with those that are late."""
        if answer.names is None:
            return tuple(sorted({*self.topics, *self.late}))
        return self.matching(answer.names)

    def learn(self, answer: TopicNames, late: Collection[str] = ()) -> None:
        """Takes an answer; the next request asks for changes since then. Topics that are ``late`` are
        remembered here, because the next answer has no names if nothing has changed in group 0."""
        found = self.found(answer)
        self.known = answer.term, answer.version
        self.topics = tuple(name for name in found if name not in late)
        self.late = tuple(name for name in found if name in late)


class Subscribing:
    """Starts the subscriptions of one consumer."""

    def __init__(
        self, router: Router, offsets: OffsetReader, group: str | None, reset: str, timeout_s: float
    ) -> None:
        self._router, self._offsets = router, offsets
        self._group, self._reset, self._timeout_s = group, reset, timeout_s
        self.catalog = TopicCatalog(router, timeout_s, clock=router.clock)

    def topics(self, topics: Sequence[str]) -> tuple[str, ...]:
        """Returns these topics, each once, after committing first offsets where needed. Raises UnknownTopic,
        Unavailable."""
        wanted = tuple(dict.fromkeys(topics))
        for topic in wanted:
            self.catalog.forget(topic)
        self.catalog.learn(wanted)
        for topic in wanted:
            if self.catalog.known(topic) is None:
                raise UnknownTopic(topic)
        if self._reset == "latest":
            self.positions_now([(t, p) for t in wanted for p in range(self.catalog.partitions(t))])
        return wanted

    def pattern(self, pattern: TopicPattern) -> None:
        """Finds the topics that match now. A topic that is deleted meanwhile is left out, unlike a named
        one."""
        answer = self._names(pattern, self._timeout_s)
        pattern.learn(answer)
        found = self._offsets.hear(pattern.topics, self._timeout_s)
        if self._group is not None and self._reset == "latest":
            pattern.learn(answer, self._commit_first_offsets(self._group, found))
        else:
            pattern.learn(answer, self._offsets.incomplete(found, self._timeout_s))

    def _commit_first_offsets(self, group: str, found: Sequence[TopicInfo]) -> frozenset[str]:
        """Commits the group's first offsets in the topics that a pattern has found. If it has offsets in some
        of them, it began earlier, and its members have not found the others yet: these begin at their start.
        Returns the topics that a broker group has not created yet."""
        if not found:
            return frozenset()
        names = [info.name for info in found]
        known = self._offsets.committed(group, names, self._timeout_s)
        begun = {topic for topic, _ in known}
        at_end = {
            (info.name, p): not begun or info.name in begun
            for info in found
            for p in range(info.partitions)
            if (info.name, p) not in known
        }
        return self._offsets.begin(group, at_end, self._timeout_s) if at_end else frozenset()

    def follow(self, pattern: TopicPattern, timeout_s: float) -> bool:
        """Looks for changes since the last answer. Returns whether the topics have changed; the first offsets
        of new ones are then committed. A new topic that a broker group has not created yet is tried again
        next time: reading it now would fail there, and with "latest" begin at its end."""
        before = pattern.topics
        answer = self._names(pattern, timeout_s)
        known = frozenset(before)
        # Their broker groups must be known before any member is given their partitions.
        new = self._offsets.hear([t for t in pattern.found(answer) if t not in known], timeout_s)
        late: frozenset[str] = frozenset()
        if new and self._group is not None and self._reset == "latest":
            partitions = {(info.name, p): False for info in new for p in range(info.partitions)}
            late = self._offsets.begin(self._group, partitions, timeout_s)
        elif new:
            late = self._offsets.incomplete(new, timeout_s)
        pattern.learn(answer, late)  # only now, so that new ones are new again if anything above has failed
        return pattern.topics != before

    def positions_now(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Where reading starts with "latest": the group's offsets (committed now if it had none), or the ends
        without a group. Known before the caller continues, so that messages sent afterwards are delivered,
        whichever member reads them."""
        lookups = [Lookup(tp, 0, "committed", 0) for tp in partitions]
        if not lookups:
            return {}
        found = self._offsets.resolve(lookups, self._group, "latest", self._timeout_s)
        positions: dict[TopicPartition, int] = {}
        for tp, offset in zip(partitions, found, strict=True):
            if isinstance(offset, EscrowMQError):
                raise offset
            positions[tp] = offset
        return positions

    def _names(self, pattern: TopicPattern, timeout_s: float) -> TopicNames:
        asked = self._router.leader_call(0, "topic_names", *pattern.known, timeout_s=timeout_s)
        answer: TopicNames = result_of(asked, timeout_s)
        return answer
