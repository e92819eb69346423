"""Which broker groups have partitions of the topics that share groups read.

A consumer learns at its start in which broker groups its topics have partitions. Others may have messages for
it all the same: retries and dead letters of a topic that was deleted. So in some worlds of several broker
groups one topic has a partition in group 0 alone; only consumers with the clients' own code are elsewhere, so
that nobody else takes what they never ask for; and CHORES is perhaps deleted for good at some time. All
consumers are restarted when the calm begins: those that begin without CHORES have everything to finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.sim.environment.world import World
from tests.sim.sharing.records import CHORES, TOPIC

PARTITIONS = 2  # in each broker group that has some
#: The topic that has a single partition; None: all broker groups have partitions of both.
NARROW = (None, None, TOPIC, TOPIC, CHORES)
#: Share of the deletions of CHORES after which nobody creates it again, in worlds with a narrow topic.
FOR_GOOD = 0.2


class Layout:
    """That of one world. ``clients``: whether there are consumers with the clients' own code."""

    def __init__(self, world: World, groups: int, *, clients: bool) -> None:
        self._groups, self._rng = groups, world.stream("layout-of-sharing")
        self.narrow = self._rng.choice(NARROW) if clients and groups > 1 else None
        self.partitions = dict.fromkeys((TOPIC, CHORES), PARTITIONS * groups)
        if self.narrow is not None:
            self.partitions[self.narrow] = 1

    def has_members(self, gid: int) -> bool:
        """Whether simple members ask this broker group."""
        return self.narrow is None or gid == 0

    def for_good(self) -> bool:
        """Whether CHORES is not created again after a deletion."""
        return self.narrow is not None and self._rng.random() < FOR_GOOD

    def topics_of(self, topics: Iterable[str]) -> Mapping[int, list[str]]:
        """Broker group -> which of these topics have partitions there (share_consumer/session.py)."""
        names = sorted(topics)
        found = {gid: [t for t in names if self.partitions[t] > gid] for gid in range(self._groups)}
        return {gid: some for gid, some in found.items() if some}
