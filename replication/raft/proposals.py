"""The outcome of each proposal: applied, certainly not logged, or unknown. Each one gets an answer.

A proposal is identified by the (index, term) of its entry. While its leadership lasts it is settled by
being applied; when the leadership ends, too much time has passed, or the node shuts down, its
outcome is unknown here: the next leader may still commit the entry. The number of entries and
bytes that wait for a majority is bounded; an entry whose proposer has given up still counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from escrowmq.replication.errors import EscrowMQError, MessageTooLarge, Overloaded
from escrowmq.replication.raft.types import RaftConfig

#: ``done(result, True)`` applied; ``done(reason, False)`` certainly not logged; ``done(None, None)`` unknown.
OnProposed = Callable[[Any, bool | None], None]
#: Largest command: with its batch it stays far below a frame's 64 MiB (wire.FRAME_BYTES_MAX).
COMMAND_BYTES_MAX = 32 << 20


@dataclass(slots=True)
class _Proposal:
    index: int
    term: int
    deadline: float
    done: OnProposed


class Proposals:
    """Proposals of one node, in index order."""

    def __init__(self, config: RaftConfig) -> None:
        self.outstanding_bytes = 0
        self._config = config
        #: In index order.
        self.waiting: deque[_Proposal] = deque()
        self._sizes: dict[int, int] = {}  # own entries not yet applied: index -> bytes

    def refusal(self, size_bytes: int) -> EscrowMQError | None:
        """Why no command of this size can be accepted now; None: it can."""
        config = self._config
        if size_bytes > COMMAND_BYTES_MAX:
            return MessageTooLarge(size_bytes, COMMAND_BYTES_MAX)
        # One is always accepted: otherwise a command larger than the bound would never get through.
        if len(self._sizes) >= config.outstanding_entries_max or (
            self._sizes and self.outstanding_bytes + size_bytes > config.outstanding_bytes_max
        ):
            return Overloaded("too many entries wait for a majority", 0.05)
        return None

    def add(self, index: int, term: int, size_bytes: int, now: float, done: OnProposed) -> None:
        assert not self.waiting or self.waiting[-1].index < index
        self._sizes[index] = size_bytes
        self.outstanding_bytes += size_bytes
        self.waiting.append(_Proposal(index, term, now + self._config.proposal_timeout_s, done))

    def applied(self, index: int, term: int, result: Any) -> None:
        self.outstanding_bytes -= self._sizes.pop(index, 0)
        waiting = self.waiting
        while waiting and waiting[0].index <= index:
            proposal = waiting.popleft()
            if proposal.index == index and proposal.term == term:
                proposal.done(result, True)
            else:
                proposal.done(None, None)  # skipped: cannot happen while one leadership lasts

    def expire(self, now: float) -> None:
        """Settle as unknown what has waited past its deadline (deadlines are in index order too)."""
        while self.waiting and self.waiting[0].deadline <= now:
            self.waiting.popleft().done(None, None)

    def abandon(self) -> None:
        """Leadership is lost, or the node stops: the outcomes can no longer be known here."""
        self._sizes.clear()
        self.outstanding_bytes = 0
        waiting, self.waiting = self.waiting, deque()
        for proposal in waiting:
            proposal.done(None, None)
