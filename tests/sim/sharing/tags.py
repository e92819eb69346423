"""Which tags messages have, and which of them a group's members want: all of a group's want the same.

In worlds with such a group each message is sent with one of the tags, or none. What the history is told of a
message's tag is what its sender gave it, not what a member has read.
"""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.message_headers import TAG
from tests.sim.environment.world import World

SHARE = 0.4  # of worlds with share groups, in which one of the groups wants tags
TAGS = ("red", "blue", "green", None)
WANTED = (("red",), ("red", "blue"))


class Tags:
    """Those of one world."""

    def __init__(self, world: World, groups: Sequence[str]) -> None:
        self._rng = world.stream("tags-of-sharing")
        #: Group -> the tags that its members want; missing: they want everything.
        self.wanted: dict[str, tuple[str, ...]] = {}
        if self._rng.random() < SHARE:
            self.wanted[self._rng.choice(groups)] = self._rng.choice(WANTED)
        self._of: dict[str, str | None] = {}

    def headers(self, id: str) -> dict[str, bytes] | None:
        """With which headers a message is sent."""
        if not self.wanted:
            return None
        tag = self._of[id] = self._rng.choice(TAGS)
        return None if tag is None else {TAG: tag.encode()}

    def of(self, id: str) -> str | None:
        """The tag with which it was sent."""
        return self._of.get(id)

    def bytes_of(self, group: str) -> frozenset[bytes] | None:
        """As a consumer of this group is given them."""
        wanted = self.wanted.get(group)
        return None if wanted is None else frozenset(tag.encode() for tag in wanted)

    def wants(self, group: str, id: str) -> bool:
        """Whether members of the group handle this message."""
        return group not in self.wanted or self.of(id) in self.wanted[group]
