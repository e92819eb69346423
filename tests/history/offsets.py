"""Offsets that consumer groups commit, and the answers allowed when they fetch them.

A fetch may return the offset acknowledged last, any offset whose commit was under way since, and any whose
commit got no answer, since that may take effect at any time. A topic that is created again has no offsets
from before. Only one member at a time commits for a
partition, and it goes back only on purpose: an offset below the last acknowledged one is lost, even if a
commit of it got no answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.history.events import Event
from tests.history.report import Report

Op = tuple[str, int]  # process, operation


@dataclass(slots=True)
class _Commit:
    offset: int
    replaces: list[Op]  # commits already acknowledged when this one was sent
    acknowledged: bool = False


@dataclass(slots=True)
class _Place:
    """One group's position in one partition."""

    low: int = -1
    #: Commits that may be in force; the first is -1: nothing committed.
    standing: dict[Op, _Commit] = field(default_factory=lambda: {("", -1): _Commit(-1, [], True)})
    #: Fetches under way: the lowest offset that they may return, and all others that they may return.
    fetches: dict[Op, tuple[int, set[int]]] = field(default_factory=dict)


class GroupOffsets:
    """Positions of all groups, from the events ``offset-commit`` and ``offset-fetch``."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._places: dict[tuple[str, str, int], _Place] = {}

    def _of(self, event: Event) -> tuple[str, _Place]:
        key = event.fields["group"], event.fields["topic"], event.fields["partition"]
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place()
        return "{} of {}[{}]".format(*key), place

    def commit_invoked(self, event: Event) -> None:
        _, place = self._of(event)
        offset: int = event.fields["offset"]
        replaces = [op for op, commit in place.standing.items() if commit.acknowledged]
        place.standing[event.process, event.op] = _Commit(offset, replaces)
        place.low = min(place.low, offset)
        for _, allowed in place.fetches.values():
            allowed.add(offset)

    def commit_acknowledged(self, invoked: Event) -> None:
        _, place = self._of(invoked)
        commit = place.standing.get((invoked.process, invoked.op))
        if commit is None:
            return  # the topic was created again meanwhile, and its places are new
        commit.acknowledged = True
        for op in commit.replaces:
            place.standing.pop(op, None)
        place.low = max(place.low, commit.offset)

    def commit_failed(self, invoked: Event) -> None:
        _, place = self._of(invoked)
        place.standing.pop((invoked.process, invoked.op), None)

    def topic_begins(self, topic: str) -> None:
        """A topic is about to be created: nothing that was committed before counts in it."""
        for key, place in self._places.items():
            if key[1] == topic:
                place.low, place.standing = -1, {("", -1): _Commit(-1, [], True)}

    def fetch_invoked(self, event: Event) -> None:
        _, place = self._of(event)
        allowed = {commit.offset for commit in place.standing.values()}
        place.fetches[event.process, event.op] = place.low, allowed

    def fetch_ended(self, invoked: Event, answer: Event | None) -> None:
        """``answer``: the event with the offset; None: the fetch got no answer."""
        where, place = self._of(invoked)
        low, allowed = place.fetches.pop((invoked.process, invoked.op))
        if answer is None:
            return
        offset: int = answer.fields["offset"]
        if offset < low or offset not in allowed:
            could = sorted(value for value in allowed if value >= low)
            text = f"group {where} is at {offset}; from what was committed it can be at {could[:5]}"
            self._report.add("lost-offset", text, invoked, answer)
