"""Whether a replica is well and, if not, what is wrong, in words for operators."""

from __future__ import annotations

from collections.abc import Collection

from escrowmq.replication.calling.answers import ReplicaReport


def problems_of(report: ReplicaReport | None, unheard: Collection[str]) -> tuple[str, ...]:
    """What is wrong with a replica; () if nothing. ``report`` None: it did not answer in time. ``unheard``:
    the ids of members that the leader has no connection to.

    A learner holds what it has copied so far and does not count for a majority yet, so its group survives
    fewer losses than its number of members suggests: that is reported as a problem, too.
    """
    if report is None:
        return ("gives no answer",)
    if report.superseded_by is not None:
        return (f"was replaced by its incarnation {report.superseded_by}",)
    if report.role not in ("leader", "follower"):
        return (f"does not run: {report.failure or 'it starts, or is being repaired'}",)
    found = []
    if report.disk_full:
        free, reserve = _mib(report.free_bytes), _mib(report.reserve_bytes)
        found.append(f"its disk is full, new work is refused: {free} are free, {reserve} are kept free")
    if report.room_problem:
        found.append(f"the free space of its file system is not known: {report.room_problem}")
    if report.learner:
        found.append("copies the log, and does not count for a majority yet")
    if str(report.rid) in unheard:
        found.append("the leader has no connection to it")
    if report.scrub is not None and report.scrub.damaged:
        found.append(f"{report.scrub.damaged} entries of its log are damaged and not repaired yet")
    return tuple(found)


def unheard_by(leader: ReplicaReport | None) -> frozenset[str]:
    """The ids of the members that a leader has no connection to."""
    return frozenset(peer.peer for peer in leader.peers if not peer.connected) if leader else frozenset()


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"
