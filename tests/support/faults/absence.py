"""What a run does not show: kinds of faults that did not strike, and why.

Pure functions. A run that is silent about what it left out would be taken for one that had everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable


def not_drawn(trials: int, of: str = "trials") -> str:
    """The plain reason: there were too few of them."""
    return f"not drawn in {trials:,} {of}"


def unseen(asked: Iterable[str], seen: Collection[str], why: Callable[[str], str]) -> dict[str, str]:
    """Of what was asked for, all that was not seen, with its reason."""
    return {what: why(what) for what in asked if what not in seen}


def lines(reasons: dict[str, str]) -> list[str]:
    """For people: one line for each reason, with all that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for what, reason in reasons.items():
        by_reason.setdefault(reason, []).append(what)
    return [f"{', '.join(whats)}: {reason}" for reason, whats in by_reason.items()]
