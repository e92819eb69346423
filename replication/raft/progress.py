"""What the leader knows of each follower: where it matches, what is under way, when to probe.

Pure bookkeeping per peer, like etcd's ``tracker``: a peer is probed with empty
messages until it has accepted one; then entries stream to it within a window of unacknowledged
bytes. A message lost on the way is noticed because the next heartbeat does not
match; the refusal rewinds. Nothing here sends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class PeerProgress:
    """Flow control of one follower under one leadership. ``match`` < ``next``, always."""

    next: int
    match: int = 0
    probing: bool = True
    in_flight_bytes: int = 0
    rewound_at_seq: int = 0  # refusals of messages up to this one are stale
    heard_seq: int = 0  # the newest message that it has answered in our term, while its answers count
    clock_ms: int = -1  # the wall clock that it told last (-1: none yet), and when it was heard, in s
    clock_s: float = 0.0
    _flights: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes), in order

    def sent(self, last_index: int, size_bytes: int) -> None:
        self.next = last_index + 1
        self._flights.append((last_index, size_bytes))
        self.in_flight_bytes += size_bytes

    def accepted(self, index: int) -> None:
        """A success up to ``index``. What was sent after it is still in flight."""
        self.probing = False
        flights = self._flights
        while flights and flights[0][0] <= index:
            self.in_flight_bytes -= flights.popleft()[1]
        if index >= self.next:
            self.next = index + 1
        self.match = max(self.match, index)

    def refused(self, hint: int, seq: int, sent_seq: int) -> bool:
        """A refusal with the index to try next; False if it answers a message sent before the last rewind."""
        if seq <= self.rewound_at_seq:
            return False
        self.rewound_at_seq = sent_seq
        self.rewind(max(self.match + 1, hint))
        return True

    def rewind(self, next_index: int) -> None:
        """Start again from ``next_index``: nothing counts as in flight, and the peer is probed first."""
        self.next, self.probing, self.in_flight_bytes = next_index, True, 0
        self._flights.clear()


def quorum_index(own: int, others: list[int]) -> int:
    """The highest index that a majority of ``own`` and ``others`` has reached."""
    ranked = sorted([own, *others], reverse=True)
    return ranked[len(ranked) // 2]
