"""Whether replicas can run on machines of their own here, and a cluster on such machines."""

from __future__ import annotations


def missing() -> str | None:
    """Why not; None if they can."""
    return "the rig of simulated machines is not there"
