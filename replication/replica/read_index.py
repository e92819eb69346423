"""Proof that this replica still leads, before it answers what only a leader may answer (Raft's ReadIndex).

A leader that was deposed without knowing it (its thread stood still, it was cut off) would tell an end of a
partition from before what its successor has acknowledged. So such a read waits for a *round*: a majority of
the voters answers, in this leader's term, a message that was sent after the read was asked for
(``Replicator.leads_since``). Until then no later leader was elected, so everything that was acknowledged
before the question is in this log; and a leader that is ready has applied it. No clock is trusted, and no
earlier round. What waits for a round shares it, so a thousand readers cost what one does.

Ongaro, "Consensus: Bridging Theory and Practice", 6.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
#: Reads that wait at one replica; beyond it, the reader is told to come back.
READS_MAX = 10_000


class Lead(Protocol):
    """What a round needs of the Raft node; see ``Replicator``."""

    @property
    def ready(self) -> bool: ...
    def check_lead(self) -> Any: ...
    def leads_since(self, check: Any) -> bool: ...


class Rounds(Generic[T]):
    """What waits for a round, and the round under way."""

    def __init__(self) -> None:
        self._next: list[T] = []
        self._asked: list[T] = []  # wait for the round under way
        self._check: Any = None
        #: Whether anything is here. (Read in every tick, hence no call.)
        self.waits = False
        #: Rounds that were begun.
        self.begun = 0

    def __len__(self) -> int:
        return len(self._next) + len(self._asked)

    def waiting(self) -> list[T]:
        """All that is here, the oldest first."""
        return [*self._asked, *self._next]

    def add(self, item: T) -> None:
        """It takes part in the next round, never in the one under way."""
        self._next.append(item)
        self.waits = True

    def over(self, raft: Lead) -> list[T] | None:
        """What the round under way has confirmed, which leaves; none if there is no round. None: the round
        goes on."""
        if self._check is None:
            return []
        if not raft.leads_since(self._check):
            return None
        self._check, confirmed, self._asked = None, self._asked, []
        self.waits = bool(self._next)
        return confirmed

    def begin(self, raft: Lead) -> bool:
        """Begin the next round, after ``over``, if something waits for one."""
        if not self._next:
            return False
        self._check, self._asked, self._next = raft.check_lead(), self._next, []
        self.begun += 1
        return True

    def drain(self) -> list[T]:
        """Leadership has ended: all that is here leaves, unconfirmed."""
        left = self.waiting()
        self._next, self._asked, self._check, self.waits = [], [], None, False
        return left


class ReadIndex:
    """Reads that wait for their round. In the replica's thread."""

    def __init__(self) -> None:
        self.rounds: Rounds[Callable[[bool], None]] = Rounds()

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self.rounds) >= READS_MAX

    def ask(self, done: Callable[[bool], None]) -> None:
        """``done(True)`` from a later ``step``, when the state here has everything that was acknowledged
        before this call; ``done(False)`` if this replica is not the leader any more."""
        self.rounds.add(done)

    def step(self, raft: Lead) -> None:
        """After whatever may have changed something, while the node is ready to lead."""
        while self.rounds.waits:
            confirmed = self.rounds.over(raft)
            if confirmed is None:
                return
            for done in confirmed:
                done(True)
            if not self.rounds.begin(raft):
                return

    def resign(self) -> None:
        """This replica does not lead, or is not ready."""
        for done in self.rounds.drain():
            done(False)
