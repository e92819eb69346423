"""What a run does not show: kinds of faults that were not drawn, or cannot be inflicted here, and why.

Pure functions. A run that is silent about what it left out would be taken for one that had everything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.chaos.kinds import KINDS, Kind
from tests.chaos.plan import Round
from tests.support.faults.absence import not_drawn, unseen

#: Not faults, but what some rounds have and others not: so many broker groups.
GROUP_NAMES = {1: "one broker group", 2: "two broker groups", 3: "three broker groups"}


def possible(kinds: Collection[Kind], missing: str | None) -> tuple[Kind, ...]:
    """Those that this machine can inflict. ``missing``: why there can be no machines; None if there can."""
    return tuple(kind for kind in Kind if kind in kinds and not (missing and KINDS[kind].machines))


def absent(
    seen: Collection[str], groups: Collection[int], asked: Collection[Kind], missing: str | None, trials: int
) -> dict[str, str]:
    """What is not among the values of kinds ``seen`` in so many trials, with the reason.

    ``groups``: numbers of broker groups that were wanted, and that no round had. What was not asked for needs
    no reason.
    """

    def why(name: str) -> str:
        machines = KINDS[Kind(name)].machines
        if missing is not None and machines:
            return f"not possible on this machine: {missing}"
        return not_drawn(trials) + (" (rounds of odd numbers have it: take more trials)" if machines else "")

    reasons = unseen([kind.value for kind in Kind if kind in asked], seen, why)
    for number in sorted(groups):
        reasons[GROUP_NAMES[number]] = f"no such round in {trials} trials (every third is one)"
    return reasons


def planned(plans: Sequence[Round]) -> tuple[set[str], set[int]]:
    """(values of all kinds in those rounds, their numbers of broker groups)."""
    faults = [fault for plan in plans for fault in plan.faults]
    kinds = {one.kind.value for fault in faults for one in (fault, fault.meanwhile) if one is not None}
    return kinds, {plan.groups for plan in plans}
