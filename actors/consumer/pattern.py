"""Subscribing to a pattern: which topics match it now, learnt from what the leader of group 0 says has
changed.

The question is small, and so is its answer unless topics were created, deleted or altered since the last one:
then all names come. Alone in deciding; the membership thread asks, and joins with what is found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from escrowmq.replication.calling.answers import TopicNames
from escrowmq.replication.errors import InvalidMessage

#: Topics that EscrowMQ makes for itself begin so, and match no pattern.
INTERNAL = "__"


class TopicPattern:
    """One pattern and what matches it, in order. One thread at a time uses it."""

    def __init__(self, pattern: str | re.Pattern[str]) -> None:
        """Raises InvalidMessage for what is no regular expression over text."""
        try:
            self._expression = re.compile(pattern)
            self._expression.fullmatch("")
        except (re.error, TypeError) as error:
            raise InvalidMessage(f"pattern must be a regular expression, not {pattern!r}: {error}") from error
        #: What the next question says is known: nothing at first, and to a new leader.
        self.known = 0, 0
        self.topics: tuple[str, ...] = ()

    def matching(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those whose whole name matches."""
        match = self._expression.fullmatch
        return tuple(sorted(name for name in names if not name.startswith(INTERNAL) and match(name)))

    def learn(self, answer: TopicNames) -> None:
        """The next question is for what has changed since."""
        self.known = answer.term, answer.version
        if answer.names is not None:
            self.topics = self.matching(answer.names)
