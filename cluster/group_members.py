"""What the supervisor makes of the configurations of members that replicas report. Pure.

The log decides who the members are, and each replica reports the newest configuration in its own, which may
not be committed and may be cut off again. So whoever must be careful counts by each of those that may be in
force.
"""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.calling.answers import MembersReport, ReplicaReport


def newest(reports: Iterable[ReplicaReport | None]) -> dict[int, MembersReport]:
    """By group: the newest configuration that a replica of it has seen applied; none where none answers."""
    found: dict[int, MembersReport] = {}
    for gid, members in _told(reports):
        if members.applied and (gid not in found or members.version > found[gid].version):
            found[gid] = members
    return found


def possible_voters(reports: Iterable[ReplicaReport | None]) -> dict[int, list[frozenset[int]]]:
    """By group: who votes, in each configuration that may be in force."""
    told = list(reports)
    applied = newest(told)
    found: dict[int, list[frozenset[int]]] = {}
    for gid, members in _told(told):
        old = gid in applied and members.version <= applied[gid].version
        # Of two configurations of one version the other was cut off, whoever still reports it.
        voters = frozenset(applied[gid].voters if old else members.voters)
        if voters and voters not in found.setdefault(gid, []):
            found[gid].append(voters)
    return found


def to_be_told(report: ReplicaReport | None, known: MembersReport | None) -> bool:
    """Whether a replica that reports this may not know who the members are. In a group that was never changed
    there is nothing to be told."""
    if known is None or not known.change_id:
        return False
    return report is None or report.members is None or report.members.version < known.version


def _told(reports: Iterable[ReplicaReport | None]) -> list[tuple[int, MembersReport]]:
    return [(r.gid, r.members) for r in reports if r is not None and r.members is not None]
