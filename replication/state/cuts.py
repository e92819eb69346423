"""What all partition indexes of one state share, so that neither a snapshot nor RETAIN has to visit them all.

A *cut* is the moment of a snapshot. Making one is one step; each partition is cut off when it next changes or
when the snapshot comes to it, whichever is earlier, and what it was at the cut is kept until the snapshot has
it. The *floor* is what RETAIN let go: each partition moves its start when that is next looked at. So entries
are applied in the same time however many partitions there are, and what the state says at an index does not
depend on who has looked at what.
"""

from __future__ import annotations


class Cuts:
    """Written by the applying thread. Others that need both read ``floor`` before ``number``."""

    __slots__ = ("floor", "floor_at_cut", "number")

    def __init__(self) -> None:
        self.number = 0  # cuts so far
        self.floor = 0  # entries before this one are let go
        self.floor_at_cut = 0

    def cut(self) -> None:
        """A snapshot of the state as it is now begins; the one before has visited every partition."""
        self.floor_at_cut = self.floor
        self.number += 1
