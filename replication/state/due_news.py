"""Which pairs of app and topic have due checks, numbered in the order in which they came to have them.

Whoever watches many pairs asks for what is new since the number that it has seen, and gets each pair once
instead of all pairs every time. Derived and of the leader's memory only, as the queues are. What is told is
a hint: a pair may be told again, and may have nothing due any more.

Numbers of pairs that have nothing due any more are gaps. The oldest pairs are numbered anew before the gaps
become many, so that one look over a bounded piece always gets on. It must never do more at a time than a few
steps for each pair that changes: it is called in the thread that sends heartbeats.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

#: Numbers that one look passes: half a millisecond.
LOOK_MAX = 1_000
#: Gaps that are left alone, however few pairs there are.
GAPS_MAX = 1_000

Pair = tuple[str, str]  # app, topic


class DueNews:
    """The pairs with due checks. Not thread-safe."""

    def __init__(self) -> None:
        self._number: dict[Pair, int] = {}
        self._pairs: OrderedDict[int, Pair] = OrderedDict()  # by number, rising
        self._last = 0

    def add(self, pair: Pair) -> None:
        """It has due checks, and had none a moment ago."""
        self._renumber(pair)
        for _ in range(2):  # the second is what makes the gaps fewer
            oldest = next(iter(self._pairs))
            if self._last - oldest <= 2 * len(self._pairs) + GAPS_MAX:
                return
            self._renumber(self._pairs[oldest])

    def remove(self, pair: Pair) -> None:
        """It has none any more; it may never have had any."""
        number = self._number.pop(pair, None)
        if number is not None:
            del self._pairs[number]

    def clear(self) -> None:
        """No pair has any. Numbers go on rising."""
        self._number.clear()
        self._pairs.clear()

    def after(self, seen: int, wanted: Callable[[Pair], bool]) -> tuple[int, list[Pair]]:
        """Pairs that are ``wanted`` with numbers above ``seen``, of the next ``LOOK_MAX`` numbers; and the
        number up to which this has looked. There is more to see while that is below ``last``."""
        first = max(min(seen, self._last) + 1, next(iter(self._pairs), self._last + 1))
        end = min(first + LOOK_MAX, self._last + 1)
        numbered = (self._pairs.get(number) for number in range(first, end))
        return end - 1, [pair for pair in numbered if pair is not None and wanted(pair)]

    @property
    def last(self) -> int:
        """The highest number that was given."""
        return self._last

    def __len__(self) -> int:
        return len(self._number)

    def _renumber(self, pair: Pair) -> None:
        self.remove(pair)
        self._last += 1
        self._number[pair] = self._last
        self._pairs[self._last] = pair
