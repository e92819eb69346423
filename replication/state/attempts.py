"""How often the message at a consumer group's place has failed: for groups that read a partition in order.

An entry counts only while the place is the one that it was noted for. From format level 10 on it is forgotten
once the place is another one: a message that was done begins anew if its group is moved back to it. Bounded:
those noted longest ago are forgotten, and their messages begin again at the first attempt.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Places with failed attempts that are kept.
ATTEMPTS_KEPT = 100_000
#: The format level from which on they are forgotten when the place moves on.
LEVEL_OF_PASSING = 10
#: Group, topic and partition.
Key = tuple[str, str, int]


class Attempts(dict[Key, tuple[int, int]]):
    """Key -> place (the next offset) and failed attempts, in the order in which they were noted. Changed in
    the applying thread only, by these methods."""

    def note(self, group: str, topic: str, flat: Sequence[int]) -> None:
        """``flat``: partition, next offset, attempts, and so on."""
        it = iter(flat)
        for partition, offset, attempts in zip(it, it, it, strict=True):
            self.pop((group, topic, partition), None)
            if attempts:
                self[group, topic, partition] = offset, attempts
        while len(self) > ATTEMPTS_KEPT:
            del self[next(iter(self))]

    def at(self, group: str, topic: str, partition: int, offset: int) -> int:
        """How often the message at that offset has failed. Any thread."""
        place, attempts = self.get((group, topic, partition), (-1, 0))
        return attempts if place == offset else 0

    def passed(self, level: int, group: str, topic: str, flat: Sequence[int]) -> None:
        """Places have moved; ``flat``: partition, next offset, and so on."""
        if level < LEVEL_OF_PASSING:
            return
        it = iter(flat)
        for partition, offset in zip(it, it, strict=True):
            place, _ = self.get((group, topic, partition), (offset, 0))
            if place != offset:
                del self[group, topic, partition]

    def drop_group(self, group: str) -> None:
        """It was deleted."""
        for key in [key for key in self if key[0] == group]:
            del self[key]

    def drop_topic(self, topic: str) -> None:
        """It was deleted."""
        for key in [key for key in self if key[1] == topic]:
            del self[key]
