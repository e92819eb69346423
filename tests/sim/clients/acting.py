"""The random actions of clients: mostly transactions, and some of everything else."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tests.sim.clients.consumers import Consumer


class Acting(ABC):
    """The actions of one group's clients, or of several groups' clients."""

    _rng: random.Random
    consumers: Sequence[Consumer]

    def act_at_random(self) -> None:
        """Do one thing, or several at the same moment."""
        acts = (self._transact, self._send, self._poll, self._cut, self._commit_offsets, self._trouble)
        for act in self._rng.choices(acts, (8, 5, 6, 2, 1, 1), k=self._rng.choice((1, 1, 2, 4))):
            act()

    @abstractmethod
    def _transact(self) -> None:
        """A producer begins a transaction."""

    @abstractmethod
    def _send(self) -> None:
        """A producer sends a plain message."""

    @abstractmethod
    def _trouble(self) -> None:
        """A process dies, or an operator decides an open transaction."""

    def _poll(self) -> None:
        self._rng.choice(self.consumers).poll()

    def _cut(self) -> None:
        self._rng.choice(self.consumers).cut()

    def _commit_offsets(self) -> None:
        self._rng.choice(self.consumers).commit_offsets()
