"""What a seed determines for a world of several groups: their topics, and how clients behave.

``REACHES`` are optional parts of the world; those in ``KEPT`` are in every schedule. A part in which the code
still has known defects is used only on request, until they are repaired.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from escrowmq.replication.format.settings import Settings
from escrowmq.replication.model import BY_NAME, first_group, group_of
from tests.sim.clients import crowd
from tests.support.places import info

#: name -> what it adds to the world.
REACHES = {
    "pipelines": "members of a group that move its offsets in their transactions",
    "placed-topics": "topics that lie where their creator has written, in some of the worlds",
    "mute-branches": "transactions over several groups of an app whose producers never poll",
    "small-requests": "brokers that take no more of each other than a dozen decisions, in some of the worlds",
    "streams": "a group of the product's own consumers in every world, over a topic that is created again",
    "nacking": "groups of the product's own consumers that nack beside transactions with their offsets",
    "small-tables": "ids, producers and groups are forgotten in every schedule, and not only in half of them",
}
#: Those that are part of every schedule.
KEPT: frozenset[str] = frozenset({"mute-branches", "placed-topics", "small-requests"})
#: Share of the worlds in which a topic's creator chose its groups.
PLACED = 0.4
#: Share of the worlds whose replicas get software of a next format level; and the times at which they begin.
UPGRADED = {"worlds": 0.15}
RISES_S = (1.0, 2.5, 4.0)
#: Largest request between brokers in a world with small requests, and the length of ids there. Ten
#: transactions, the fewest that a broker puts into one request, still fit.
REQUEST_LIMIT, ID_BYTES = 1 << 20, 180
REQUEST_BYTES = (REQUEST_LIMIT, REQUEST_LIMIT, 2_600)


def draw_upgrade(rng: random.Random) -> float | None:
    """When replicas begin to get software of the next format level; None: never."""
    return rng.choice(RISES_S) if rng.random() < UPGRADED["worlds"] else None


@dataclass(frozen=True, slots=True)
class Scene:
    """The scene of a seed. A failing seed's report prints every field."""

    groups: int
    size: int
    topics: dict[str, int]  # name -> partitions
    act_every_s: float
    part_bytes: int
    delivery_timeout_s: float
    across: float  # share of transactions over more than one group
    late_copies: float  # share of requests of which a copy arrives seconds later
    fence: bool  # a check that finds no row writes one, which makes a running local transaction fail
    crowd: bool  # hundreds of topics of one app, and apps that are used once
    tables: Settings | None  # set by a SETTINGS at the start; None: the defaults
    reach: frozenset[str]
    request_bytes: int  # largest request between brokers: smaller than some that they would like to send
    firsts: dict[str, int] | None  # name -> first group, chosen by the creator; None: by the topics' names
    rises_at_s: float | None  # when replicas begin to get software of the next format level; None: never

    @staticmethod
    def of(seed: int, groups: int, *, size: int | None = None, reach: frozenset[str] = KEPT) -> Scene:
        rng = random.Random(f"scene-{seed}-{groups}")
        chosen_size = rng.choice((3, 3, 3, 3, 5))
        act_every_s, part_bytes = rng.choice((0.02, 0.05, 0.1)), rng.choice((150, 600, 1 << 20))
        timeout_s, share = rng.choice((1.0, 3.0, 8.0)), rng.choice((0.0, 0.4, 0.7, 1.0))
        late, small = rng.choice((0.0, 0.05, 0.2)), rng.choice((60, 110, 150))
        fence, forgetful, tables = rng.random() < 0.5, rng.random() < 0.4, None
        if share == 0.0 or forgetful or "small-tables" in reach:  # an app counts as APP_AS_IDS beside its ids
            tables = Settings(settled_generation=small, producers_generation=small // 20, groups_kept=2)
        placement = random.Random(f"places-{seed}-{groups}")  # a separate stream: other choices do not change
        limits = random.Random(f"limits-{seed}-{groups}")
        firsts = None
        if "placed-topics" in reach and placement.random() < PLACED:
            firsts = {"t": placement.randrange(groups), "u": placement.randrange(groups)}
        if not reach.isdisjoint(("streams", "nacking")):
            tables = None
        return Scene(
            groups=groups,
            size=size or chosen_size,
            topics={"t": groups + 1, "u": groups},
            act_every_s=act_every_s,
            part_bytes=part_bytes,
            delivery_timeout_s=timeout_s,
            across=share,
            late_copies=late,
            fence=fence,
            crowd=rng.random() < crowd.SHARE,
            tables=tables,
            reach=reach,
            request_bytes=limits.choice(REQUEST_BYTES) if "small-requests" in reach else REQUEST_LIMIT,
            firsts=firsts,
            rises_at_s=draw_upgrade(random.Random(f"levels-{seed}-{groups}")),
        )

    @property
    def ids_end(self) -> str:
        """A suffix that makes ids long in worlds with small requests."""
        return "-" * ID_BYTES if self.request_bytes < REQUEST_LIMIT else ""

    def group_of(self, topic: str, partition: int) -> int:
        """The broker group of a partition, as the clients' real code computes it."""
        known = info(topic, first=BY_NAME if self.firsts is None else self.firsts[topic])
        return group_of(first_group(known), partition, self.groups)

    def tables_of(self, gid: int) -> Settings | None:
        """The settings of a group's tables."""
        return self.tables

    def partitions(self, gid: int | None = None) -> list[tuple[str, int]]:
        """The partitions of one group, or of all."""
        every = [(topic, number) for topic, count in self.topics.items() for number in range(count)]
        return [p for p in every if gid is None or self.group_of(*p) == gid]
