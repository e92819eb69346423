"""Subscribing to a pattern: the topics that match it now, from the changes that group 0's leader reports.

The request is small. So is its answer, unless topics were created, deleted or altered since the last one:
then it contains all names. This module only decides; the membership thread asks, and joins with the result.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from escrowmq.replication.calling.answers import TopicNames
from escrowmq.replication.errors import InvalidMessage

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
