"""The lag of consumer groups, each as it was last found.

A consumer group needs its coordinator and the leaders of its partitions. While a broker group is away, the
consumer groups that need it keep their last values, and the others go on; when the lag of all consumer groups
of a coordinator was last found is told as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from escrowmq.actors.admin.group_places import describe_each
from escrowmq.actors.admin.types import GroupDescription
from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.actors.client.router import Router, result_of
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.replication.errors import EscrowMQError

log = logging.getLogger(__name__)

#: Number of consumer groups whose lag is asked for: each costs its coordinator a call.
CONSUMER_GROUPS_MAX = 200
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class FoundLags:
    """What ``Found`` has of consumer groups, under the same names."""

    lag: dict[tuple[str, str], int] = field(default_factory=dict)
    lag_limited: bool = False
    shares: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    lag_at: dict[int, float] = field(default_factory=dict)


class Lags:
    """Looks at one cluster. Used by one thread at a time."""

    def __init__(self, router: Router, wall_clock: Callable[[], float], timeout_s: float = TIMEOUT_S) -> None:
        self._router, self._wall_clock, self._timeout_s = router, wall_clock, timeout_s
        self._offsets = OffsetReader(router)
        self._found: dict[str, GroupDescription] = {}
        self._at: dict[int, float] = {}

    def look(self) -> FoundLags:
        """Asks for at most CONSUMER_GROUPS_MAX groups."""
        names, whole = self._names()
        chosen = sorted(names)[:CONSUMER_GROUPS_MAX]
        kept, self._found = self._found, {}
        for name, found in zip(
            chosen, describe_each(self._router, self._offsets, chosen, self._timeout_s), strict=True
        ):
            if isinstance(found, GroupDescription):
                self._found[name] = found
                continue
            log.debug("the lag of consumer group %s is not known: %s", name, found)
            whole.discard(coordinator_group(name, self._router.info.groups))
            if name in kept:
                self._found[name] = kept[name]
        self._at.update(dict.fromkeys(whole, self._wall_clock()))
        return _sums(self._found.values(), len(names) > CONSUMER_GROUPS_MAX, dict(self._at))

    def _names(self) -> tuple[set[str], set[int]]:
        """Consumer groups, and the broker groups that listed theirs. Of the others, those known before."""
        groups = self._router.info.groups
        asked = [
            self._router.leader_call(gid, "group_list", timeout_s=self._timeout_s) for gid in range(groups)
        ]
        names, whole = set[str](), set[int]()
        for gid, future in enumerate(asked):
            try:
                names.update(result_of(future, self._timeout_s))
                whole.add(gid)
            except EscrowMQError as error:  # a group without a leader must not hide the others
                log.debug("consumer groups of broker group %d are not known: %s", gid, error)
        names.update(name for name in self._found if coordinator_group(name, groups) not in whole)
        return names, whole


def _sums(described: Iterable[GroupDescription], limited: bool, at: dict[int, float]) -> FoundLags:
    found = FoundLags(lag_limited=limited, lag_at=at)
    for group in described:
        for place in group.partitions:
            if place.lag is not None:
                key = group.group, place.topic
                found.lag[key] = found.lag.get(key, 0) + place.lag
        if (share := group.share) is not None:
            found.shares[group.group] = share.leased, share.retrying, share.dead
            for part in share.partitions:
                key = group.group, part.topic
                found.lag[key] = found.lag.get(key, 0) + part.lag
    return found
