"""Where a group commit runs: in the replica's own thread, or in the one that waits for the disk.

Handing a small write to another thread and back takes four waits of threads: as much time as a good disk
needs for it. But a disk that hangs would hold up heartbeats, and with them the leadership, so the write stays
in the replica's thread only while it is small and the disk has lately been quick. After one that was slow,
the other thread does all for a minute: so a bad disk costs at most one election a minute. A snapshot that is
written beside it, or a large file that is removed, makes a good disk slow: then, too, the other thread works.
"""

from __future__ import annotations

#: Larger writes gain more from work that goes on meanwhile than they lose by the hand-over.
INLINE_BYTES_MAX = 8 << 10
#: A sync of at most this time costs less than it costs to wait for another thread.
QUICK_S = 0.002
#: So many quick ones in a row are needed.
QUICK_RUN = 16
#: A tenth of the shortest time after which followers campaign; a longer one shows that this disk can hang.
SLOW_S = 0.03
AVOID_S = 60.0
#: The kernel goes on with what a snapshot has written when that is done.
SETTLE_S = 5.0


class SyncPlace:
    """Decides, from the last syncs. Used while no sync is under way."""

    def __init__(self) -> None:
        self._quick = self._others = 0
        self._avoid_until = float("-inf")

    def inline(self, size: int | None, now: float) -> bool:
        """Whether to sync ``size`` bytes in the replica's thread; None: more than an append to an open
        file."""
        return (
            size is not None
            and size <= INLINE_BYTES_MAX
            and self._quick >= QUICK_RUN
            and not self._others
            and now >= self._avoid_until
        )

    def other_work_begins(self) -> None:
        """A snapshot is about to be written, or a segment to be removed. In the replica's thread."""
        self._others += 1

    def other_work_ended(self, now: float) -> None:
        """One of those has ended. In the replica's thread."""
        self._others -= 1
        self._avoid_until = max(self._avoid_until, now + SETTLE_S)

    def took(self, seconds: float, now: float) -> None:
        """A sync has ended, wherever it ran."""
        self._quick = self._quick + 1 if seconds <= QUICK_S else 0
        if seconds > SLOW_S:
            self._avoid_until = now + AVOID_S
