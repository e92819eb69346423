"""What a leader knows of the wall clocks of its group, so that one clock that is wrong does not decide.

Each acknowledgement tells its sender's wall clock. The leader takes the lower median of all voters' clocks,
its own among them: no minority of clocks that are ahead can make it early, and none that are behind can make
it late while the others answer. A voter of which it has not heard under this leadership counts as behind
all others; so without some voters it is the lowest clock of a bare majority: rather late than early.

A clock is taken to have gone on since it was told, by this replica's monotonic clock, for a second at most:
that clock may jump, too, when a machine was halted. With heartbeats that are answered, the error is that of
a message's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.raft.members import Circle
from escrowmq.replication.raft.progress import PeerProgress
from escrowmq.replication.raft.types import Clock

#: What was told longer ago than this stands still.
GOES_ON_S: Final = 1.0


class GroupClock:
    """The clocks of one group, as one replica hears of them. In the node's thread."""

    def __init__(
        self,
        circle: Circle,
        leads: Callable[[], bool],
        progress: Callable[[], dict[str, PeerProgress]],
        clock: Clock,
    ) -> None:
        """``progress``: of the present leadership."""
        self._circle, self._leads, self._progress, self._clock = circle, leads, progress, clock
        #: This replica's wall clock in ms, to be told to leaders; None: they may not know such messages.
        self.tell: Callable[[], int | None] = lambda: None

    def stamped(self, message: RaftMessage) -> RaftMessage:
        """A message that goes out; an acknowledgement tells the clock."""
        if message["type"] == "next_node_idx" and (told := self.tell()) is not None:
            message["clock_ms"] = told
        return message

    def heard(self, state: PeerProgress, message: RaftMessage) -> None:
        """An acknowledgement has arrived."""
        if "clock_ms" in message:
            state.clock_ms, state.clock_s = message["clock_ms"], self._clock()

    @property
    def leading(self) -> bool:
        """Whether this replica leads: only then does it hear of the others' clocks."""
        return self._leads()

    def lower_median_ms(self, own_ms: int) -> int | None:
        """The group's time by its clocks. None: too few voters have told theirs."""
        progress, now = self._progress(), self._clock()
        known = [own_ms]
        for peer in self._circle.voters:
            state = progress.get(peer)
            if state is not None and state.clock_ms >= 0:
                known.append(state.clock_ms + int(min(now - state.clock_s, GOES_ON_S) * 1000))
        return lower_median(known, 1 + len(self._circle.voters))

    def monotonic_ms(self) -> int:
        """This replica's monotonic clock."""
        return int(self._clock() * 1000)


def lower_median(known: list[int], voters: int) -> int | None:
    """The lower median of so many clocks, of which these are known; the others count as behind. None: it is
    one of the others."""
    at = (voters - 1) // 2 - (voters - len(known))
    return sorted(known)[at] if at >= 0 else None
