"""Which pairs of app and topic have due checks, numbered in the order in which they got them.

A caller that watches many pairs asks for the news since the last number it has seen, and gets each pair once
instead of all pairs every time. Derived, and only in the leader's memory, like the queues. The answer is
a hint: a pair may be reported again, and may no longer have anything due.

Numbers of pairs that no longer have anything due are gaps. The oldest pairs are renumbered before the gaps
become many, so that a look at a bounded range of numbers always makes progress. Work per call must be a few
steps for each pair that changes: it is called in the thread that sends heartbeats.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

#: Numbers that one call of ``after`` reads: half a millisecond.
LOOK_MAX = 1_000
#: Gaps that are tolerated, however few pairs there are.
GAPS_MAX = 1_000

Pair = tuple[str, str]  # app, topic


class DueNews:
    """The pairs with due checks. Not thread-safe, except ``topics``."""

    def __init__(self) -> None:
        self._number: dict[Pair, int] = {}
        self._pairs: OrderedDict[int, Pair] = OrderedDict()  # by number, rising
        self._topics: dict[str, dict[str, None]] = {}  # of these pairs, by app
        self._last = 0

    def add(self, pair: Pair) -> None:
        """The pair has due checks, and had none just before."""
        app, topic = pair
        self._topics.setdefault(app, {})[topic] = None
        self._renumber(pair)
        for _ in range(2):  # the second round reduces the gaps
            oldest = next(iter(self._pairs))
            if self._last - oldest <= 2 * len(self._pairs) + GAPS_MAX:
                return
            self._renumber(self._pairs[oldest])

    def remove(self, pair: Pair) -> None:
        """The pair no longer has any; it may never have had any."""
        number = self._number.pop(pair, None)
        if number is None:
            return
        del self._pairs[number]
        app, topic = pair
        topics = self._topics[app]
        del topics[topic]
        if not topics:
            del self._topics[app]

    def clear(self) -> None:
        """No pair has any. Numbers continue to rise."""
        self._number.clear()
        self._pairs.clear()
        self._topics.clear()

    def after(self, seen: int, wanted: Callable[[Pair], bool]) -> tuple[int, list[Pair]]:
        """Pairs that are ``wanted`` among the next ``LOOK_MAX`` numbers above ``seen``, and the last number
        read. There is more to read while that number is below ``last``."""
        first = max(min(seen, self._last) + 1, next(iter(self._pairs), self._last + 1))
        end = min(first + LOOK_MAX, self._last + 1)
        numbered = (self._pairs.get(number) for number in range(first, end))
        return end - 1, [pair for pair in numbered if pair is not None and wanted(pair)]

    def topics(self, app: str) -> list[str]:
        """Topics in which the app has due checks. In one step of the interpreter: other threads read it
        too."""
        return list(self._topics.get(app, ()))

    @property
    def last(self) -> int:
        """The highest number given out."""
        return self._last

    def __len__(self) -> int:
        return len(self._number)

    def _renumber(self, pair: Pair) -> None:
        number = self._number.get(pair)
        if number is not None:
            del self._pairs[number]
        self._last += 1
        self._number[pair] = self._last
        self._pairs[self._last] = pair
