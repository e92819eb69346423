"""What a run left out: kinds of faults that were not drawn, or cannot be inflicted here, with the reason.

Pure functions. If a run did not report this, readers would assume that it had every kind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.chaos.kinds import KINDS, Kind
from tests.chaos.plan import Round
from tests.support.faults.absence import not_drawn, unseen

#: Numbers of broker groups: a property of rounds that a run may also lack.
GROUP_NAMES = {1: "one broker group", 2: "two broker groups", 3: "three broker groups"}


def possible(kinds: Collection[Kind], missing: str | None) -> tuple[Kind, ...]:
    """The kinds that this machine can inflict. ``missing``: why it cannot simulate machines; or None."""
    return tuple(kind for kind in Kind if kind in kinds and not (missing and KINDS[kind].machines))


def absent(
    seen: Collection[str], groups: Collection[int], asked: Collection[Kind], missing: str | None, trials: int
) -> dict[str, str]:
    """The kinds that ``trials`` trials lack, with the reason. ``seen``: the values of the kinds they had.

    ``groups``: numbers of broker groups that were wanted, but that no round had. Only kinds in ``asked`` need
    a reason.
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
    """(the values of all kinds in these rounds, their numbers of broker groups)."""
    faults = [fault for plan in plans for fault in plan.faults]
    kinds = {one.kind.value for fault in faults for one in (fault, fault.meanwhile) if one is not None}
    return kinds, {plan.groups for plan in plans}
