"""Which faults struck in which phases of transactions: a table that shows what the schedules covered.

A transaction can be in several phases at once (its local transaction runs while a check is out). A cell
counts the faults that struck while at least one transaction was in that phase. A fault counts when it takes
effect and not when it is set up, and only if it hits something.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.sim.faults.plan import GROUP_KINDS, ONE_GROUP_KINDS
from tests.support.faults.tables import Cells, Grid


class Phase(enum.Enum):
    """The phase of a transaction: the specified crash points, and those of PREPAREs with several parts."""

    PREPARING = "PREPARE sent, not durable"
    PREPARED_IN_PART = "PREPARE durable, PRE_MESSAGEs only in part"
    PREPARED = "all PRE_MESSAGEs durable, not acknowledged"
    LOCAL = "local transaction running"
    COMMITTING = "COMMIT sent, not durable"
    COMMITTED = "COMMIT durable, not acknowledged"
    ROLLING_BACK = "ROLLBACK sent, not durable"
    ROLLED_BACK = "ROLLBACK durable, not acknowledged"
    CHECK_OUT = "check handed out"
    CHECK_ANSWERED = "check answered, decision not durable"
    ORPHANED = "open, its producer is gone"


class AcrossPhase(enum.Enum):
    """Additional phases of a transaction over several groups."""

    HOME_ONLY = "home prepared, no branch"
    SOME_BRANCHES = "home prepared, branches in part"
    HOME_DECIDED = "home decided, no branch has followed"
    SOME_FOLLOWED = "home decided, branches have followed in part"


AnyPhase = Phase | AcrossPhase


def cells(log: Sequence[tuple[float, str, str]], stays: Iterable[tuple[float, float, AnyPhase]]) -> Cells:
    """Count faults by phase. ``log``: (seconds, kind, victim) of each fault; "" as victim: it hit nothing."""
    struck = sorted((at, kind) for at, kind, victim in log if victim)
    times = [at for at, _ in struck]
    met: set[tuple[int, AnyPhase]] = set()
    for since, until, phase in stays:
        for number in range(bisect.bisect_left(times, since), bisect.bisect_right(times, until)):
            met.add((number, phase))
    return Counter((phase.value, struck[number][1]) for number, phase in met)


def grid(found: Cells, kinds: Sequence[str] = ONE_GROUP_KINDS) -> Grid:
    """The table of these kinds by phase, and its cells that were not reached."""
    return Grid(kinds, [phase.value for phase in Phase], found)


def across_grid(found: Cells, kinds: Sequence[str] = GROUP_KINDS) -> Grid:
    """As ``grid``, for worlds of several groups."""
    return Grid(kinds, [phase.value for phase in (*Phase, *AcrossPhase)], found)
