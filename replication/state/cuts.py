"""State shared by all partition indexes, so that neither a snapshot nor RETAIN has to visit them all.

A *cut* is the moment of a snapshot. Making one takes one step; each partition is cut off when it next
changes or when the snapshot visits it, whichever is earlier, and its state at the cut is kept until the
snapshot has taken it. The *floor* is what RETAIN released: each partition moves its start when it is next
read. So the time to apply an entry does not depend on the number of partitions, and the state at an index
does not depend on which parts were read before.
"""

from __future__ import annotations


class Cuts:
    """Written by the applying thread. Other threads that need both must read ``floor`` before ``number``."""

    __slots__ = ("floor", "floor_at_cut", "number")

    def __init__(self) -> None:
        self.number = 0  # cuts so far
        self.floor = 0  # entries before this one are released
        self.floor_at_cut = 0

    def cut(self) -> None:
        """A snapshot of the present state begins; the previous one has visited every partition."""
        self.floor_at_cut = self.floor
        self.number += 1
