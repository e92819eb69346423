"""What operators want of replicas and nodes, until it is so: kept with the cluster's record.

A wish says what is to be, not how far it has got: that stands in the logs of the groups and in where replicas
sit. So a supervisor that starts anew goes on where the last one ended, and repeating a wish changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Size:
    """Group ``gid`` is to have so many voters."""

    gid: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Move:
    """In the place of replica ``rid`` of group ``gid`` another one is to be on ``node``."""

    gid: int
    rid: int
    node: str


@dataclass(frozen=True, slots=True)
class Lead:
    """Replica ``rid`` of group ``gid`` is to lead once."""

    gid: int
    rid: int


@dataclass(frozen=True, slots=True)
class Wishes:
    """All of them. ``leads``: at most one for each group. ``drained``: nodes that are to hold no replica;
    ``maintained``: nodes that are about to be away for a while, which neither lead, nor get replicas, nor
    have them replaced."""

    sizes: tuple[Size, ...] = ()
    moves: tuple[Move, ...] = ()
    drained: tuple[str, ...] = ()
    maintained: tuple[str, ...] = ()
    leads: tuple[Lead, ...] = ()

    def size(self, gid: int, founders: int) -> int:
        """How many voters the group is to have; as many as at its beginning where nothing was said."""
        return next((one.replicas for one in self.sizes if one.gid == gid), founders)

    def moves_of(self, gid: int) -> dict[int, str]:
        """Replica -> node, of one group."""
        return {move.rid: move.node for move in self.moves if move.gid == gid}

    def with_size(self, gid: int, replicas: int) -> Wishes:
        """A copy in which the group is to have so many voters."""
        others = tuple(one for one in self.sizes if one.gid != gid)
        return replace(self, sizes=(*others, Size(gid, replicas)))

    def with_moves(self, moves: Collection[Move]) -> Wishes:
        """A copy with these, in the place of earlier ones of the same replicas."""
        new = {(move.gid, move.rid) for move in moves}
        return replace(
            self, moves=(*(move for move in self.moves if (move.gid, move.rid) not in new), *moves)
        )

    def without_moves(self, gid: int, rids: Collection[int]) -> Wishes:
        """A copy that wants nothing of these replicas of a group any more."""
        return replace(self, moves=tuple(m for m in self.moves if m.gid != gid or m.rid not in rids))

    def lead_of(self, gid: int) -> int | None:
        """Who is to lead a group; None: nobody in particular."""
        return next((lead.rid for lead in self.leads if lead.gid == gid), None)

    def with_leads(self, leads: Collection[Lead]) -> Wishes:
        """A copy with these, in the place of earlier ones of the same groups."""
        new = {lead.gid for lead in leads}
        return replace(self, leads=(*(lead for lead in self.leads if lead.gid not in new), *leads))

    def without_lead(self, gid: int) -> Wishes:
        """A copy in which nobody in particular is to lead the group."""
        return replace(self, leads=tuple(lead for lead in self.leads if lead.gid != gid))

    def with_node(self, node: str, *, drained: bool, maintained: bool) -> Wishes:
        """A copy that says this of the node, and nothing else."""
        return replace(
            self,
            drained=_with(self.drained, node, drained),
            maintained=_with(self.maintained, node, maintained),
        )


def _with(names: tuple[str, ...], name: str, there: bool) -> tuple[str, ...]:
    return tuple(sorted({*names, name} if there else set(names) - {name}))
