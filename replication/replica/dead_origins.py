"""Which messages are among a group's dead letters: a message dies once, however many copies of it fail.

A consumer that dies between its nack and its commit leaves a message and its copy, and both may fail for
good. An operator would redrive both. The copies of a message never leave its broker group, so one leader sees
all of them, and leaves out a dead letter that is there already. A letter that was redriven or dropped does
not count: the message may die again.

Derived from the topic of dead letters, from its end back over as many as are remembered, when a message dies
first in a leadership. Used in the leader's thread.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

from escrowmq.replication.errors import OffsetGone
from escrowmq.replication.format.forwarded import Origin, decode_row, history
from escrowmq.replication.replica.copies import Rows
from escrowmq.replication.state.topics import Partition

#: Letters of one group that are looked at: their rows are read in the leader's thread, once in a leadership.
#: Copies of a message fail within its attempts, so not many others die in between.
LETTERS_MAX = 1_000
#: Groups whose letters are remembered.
GROUPS_MAX = 64


class _Letters:
    """Of one group. ``upto``: the first offset that was not looked at."""

    __slots__ = ("places", "upto")

    def __init__(self, begin: int) -> None:
        self.upto = begin
        self.places: OrderedDict[Origin, int] = OrderedDict()


class DeadOrigins:
    """See the module's text."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._known: OrderedDict[int, _Letters] = OrderedDict()  # by slot
        #: Of entries that may be in the log and are not applied yet.
        self._under_way: Counter[tuple[int, Origin]] = Counter()

    def forget(self) -> None:
        """Leadership is lost."""
        self._known.clear()
        self._under_way.clear()

    def has(self, target: Partition, origin: Origin, is_settled: Callable[[int], bool]) -> bool:
        """Whether it is there, or about to be. ``is_settled``: whether a letter was redriven or dropped."""
        if self._under_way[target.slot, origin]:
            return True
        at = self._caught_up(target).places.get(origin)
        return at is not None and at >= target.index.start and not is_settled(at)

    def coming(self, target: Partition, origin: Origin) -> None:
        """An entry brings it."""
        self._under_way[target.slot, origin] += 1

    def ended(self, slot: int, origin: Origin) -> None:
        """That entry is applied, or certainly in no log."""
        self._under_way[slot, origin] -= 1
        if self._under_way[slot, origin] <= 0:
            del self._under_way[slot, origin]

    def _caught_up(self, target: Partition) -> _Letters:
        index = target.index
        oldest = max(index.start, index.end - LETTERS_MAX)
        known = self._known.get(target.slot)
        if known is None:
            known = self._known[target.slot] = _Letters(oldest)
            while len(self._known) > GROUPS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(target.slot)
        for offset in range(max(known.upto, oldest), index.end):
            try:
                found = decode_row(self._rows.read(target, offset)[0])
            except OffsetGone:
                continue
            origin = None if found is None else history(found.headers).origin
            if origin is not None:
                known.places[origin] = offset
                known.places.move_to_end(origin)
        known.upto = index.end
        while len(known.places) > LETTERS_MAX:
            known.places.popitem(last=False)
        return known
