"""Offsets that consumer groups commit, and what they may be told when they ask for them.

A fetch may answer with what was acknowledged last, with anything that was under way since, and with what
never got an answer, which may take effect at any time. One member commits for a partition at a time and
never goes back unless it means to: what is below the last acknowledged offset is lost, even if a commit of
it got no answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.history.events import Event
from tests.history.report import Report

Op = tuple[str, int]  # process, operation


@dataclass(slots=True)
class _Commit:
    offset: int
    replaces: list[Op]  # commits that had been acknowledged when it was sent
    acknowledged: bool = False


@dataclass(slots=True)
class _Place:
    """One group's position in one partition."""

    low: int = -1
    #: Commits that may be what stands: -1, nothing committed, is the first.
    standing: dict[Op, _Commit] = field(default_factory=lambda: {("", -1): _Commit(-1, [], True)})
    #: Fetches under way: the least that they may answer, and all that they may.
    fetches: dict[Op, tuple[int, set[int]]] = field(default_factory=dict)


class GroupOffsets:
    """All groups' positions. Events are those of ``offset-commit`` and ``offset-fetch``."""

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
        commit = place.standing[invoked.process, invoked.op]
        commit.acknowledged = True
        for op in commit.replaces:
            place.standing.pop(op, None)
        place.low = max(place.low, commit.offset)

    def commit_failed(self, invoked: Event) -> None:
        _, place = self._of(invoked)
        del place.standing[invoked.process, invoked.op]

    def fetch_invoked(self, event: Event) -> None:
        _, place = self._of(event)
        allowed = {commit.offset for commit in place.standing.values()}
        place.fetches[event.process, event.op] = place.low, allowed

    def fetch_ended(self, invoked: Event, answer: Event | None) -> None:
        """``answer``: the event that tells an offset; None: the fetch had no answer."""
        where, place = self._of(invoked)
        low, allowed = place.fetches.pop((invoked.process, invoked.op))
        if answer is None:
            return
        offset: int = answer.fields["offset"]
        if offset < low or offset not in allowed:
            could = sorted(value for value in allowed if value >= low)
            text = f"group {where} is at {offset}; from what was committed it can be at {could[:5]}"
            self._report.add("lost-offset", text, invoked, answer)
