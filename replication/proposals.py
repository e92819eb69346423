"""What became of each proposal: applied, surely not logged, or unknown. Nothing is left without an answer.

A proposal is known by the (index, term) of its entry. While its leadership lasts it is settled by
being applied; when the leadership ends, or too much time has passed, or the node shuts down, its
outcome is unknown here: the entry may still be committed by the next leader. The table is bounded
by what the caller admits (``bytes``, ``len``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: ``done(result, True)`` applied; ``done(None, False)`` surely not logged; ``done(None, None)`` unknown.
Done = Callable[[Any, bool | None], None]


@dataclass(slots=True)
class _Proposal:
    index: int
    term: int
    deadline: float
    done: Done


class Proposals:
    """Proposals of one node, in index order."""

    def __init__(self) -> None:
        self._waiting: deque[_Proposal] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, index: int, term: int, deadline: float, done: Done) -> None:
        assert not self._waiting or self._waiting[-1].index < index
        self._waiting.append(_Proposal(index, term, deadline, done))

    def applied(self, index: int, term: int, result: Any) -> None:
        waiting = self._waiting
        while waiting and waiting[0].index <= index:
            proposal = waiting.popleft()
            if proposal.index == index and proposal.term == term:
                proposal.done(result, True)
            else:
                proposal.done(None, None)  # passed over: cannot happen while one leadership lasts

    def expire(self, now: float) -> None:
        """Settle as unknown what has waited past its deadline (deadlines are in index order too)."""
        while self._waiting and self._waiting[0].deadline <= now:
            self._waiting.popleft().done(None, None)

    def abandon(self) -> None:
        """Leadership is lost, or the node stops: nobody here can tell any more."""
        waiting, self._waiting = self._waiting, deque()
        for proposal in waiting:
            proposal.done(None, None)
