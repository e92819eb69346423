"""Changes of replicas and nodes that operators want ("wishes"), kept in the cluster's record until done.

A wish describes the wanted state, not the progress; the progress is in the groups' logs and in the replicas'
seats. So a restarted supervisor continues where the last one stopped, and repeating a wish changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Size:
    """Group ``gid`` should have ``replicas`` voters."""

    gid: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Move:
    """Replica ``rid`` of group ``gid`` should be replaced by a new one on ``node``."""

    gid: int
    rid: int
    node: str


@dataclass(frozen=True, slots=True)
class Lead:
    """Replica ``rid`` of group ``gid`` should become leader once."""

    gid: int
    rid: int


@dataclass(frozen=True, slots=True)
class DesiredState:
    """All wishes.

    ``leads``: at most one for each group. ``drained``: nodes that should have no replicas. ``maintained``:
    nodes that are about to be away for a while; they get no leaders and no new replicas, and their own
    replicas are not replaced.
    """

    sizes: tuple[Size, ...] = ()
    moves: tuple[Move, ...] = ()
    drained: tuple[str, ...] = ()
    maintained: tuple[str, ...] = ()
    leads: tuple[Lead, ...] = ()

    def size(self, gid: int, founders: int) -> int:
        """The wanted number of voters of a group; by default its initial number, ``founders``."""
        return next((one.replicas for one in self.sizes if one.gid == gid), founders)

    def moves_of(self, gid: int) -> dict[int, str]:
        """The moves of one group: replica -> node."""
        return {move.rid: move.node for move in self.moves if move.gid == gid}

    def with_size(self, gid: int, replicas: int) -> DesiredState:
        """A copy with this wanted number of voters of the group."""
        others = tuple(one for one in self.sizes if one.gid != gid)
        return replace(self, sizes=(*others, Size(gid, replicas)))

    def with_moves(self, moves: Collection[Move]) -> DesiredState:
        """A copy with these moves, which replace earlier moves of the same replicas."""
        new = {(move.gid, move.rid) for move in moves}
        return replace(
            self, moves=(*(move for move in self.moves if (move.gid, move.rid) not in new), *moves)
        )

    def without_moves(self, gid: int, rids: Collection[int]) -> DesiredState:
        """A copy without the moves of these replicas of a group."""
        return replace(self, moves=tuple(m for m in self.moves if m.gid != gid or m.rid not in rids))

    def lead_of(self, gid: int) -> int | None:
        """The replica that should lead a group; None: no preference."""
        return next((lead.rid for lead in self.leads if lead.gid == gid), None)

    def with_leads(self, leads: Collection[Lead]) -> DesiredState:
        """A copy with these leads, which replace earlier leads of the same groups."""
        new = {lead.gid for lead in leads}
        return replace(self, leads=(*(lead for lead in self.leads if lead.gid not in new), *leads))

    def without_lead(self, gid: int) -> DesiredState:
        """A copy without a preference for the leader of the group."""
        return replace(self, leads=tuple(lead for lead in self.leads if lead.gid != gid))

    def with_node(self, node: str, *, drained: bool, maintained: bool) -> DesiredState:
        """A copy with this use of the node."""
        return replace(
            self,
            drained=_with(self.drained, node, drained),
            maintained=_with(self.maintained, node, maintained),
        )


def _with(names: tuple[str, ...], name: str, there: bool) -> tuple[str, ...]:
    return tuple(sorted({*names, name} if there else set(names) - {name}))
