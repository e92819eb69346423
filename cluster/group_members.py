"""How the supervisor interprets the member configurations that replicas report. Pure.

The log decides who the members are. Each replica reports the newest configuration in its own log, which may
be uncommitted and may still be truncated. So a decision that must be safe has to be safe under each of the
configurations that may be in force.
"""

from __future__ import annotations

from collections.abc import Iterable

from escrowmq.replication.calling.answers import MembersReport, ReplicaReport


def newest(reports: Iterable[ReplicaReport | None]) -> dict[int, MembersReport]:
    """By group: the newest configuration that any of its replicas has applied. Silent groups are left out."""
    found: dict[int, MembersReport] = {}
    for gid, members in _told(reports):
        if members.applied and (gid not in found or members.version > found[gid].version):
            found[gid] = members
    return found


def possible_voters(reports: Iterable[ReplicaReport | None]) -> dict[int, list[frozenset[int]]]:
    """By group: the voters of each configuration that may be in force."""
    told = list(reports)
    applied = newest(told)
    found: dict[int, list[frozenset[int]]] = {}
    for gid, members in _told(told):
        old = gid in applied and members.version <= applied[gid].version
        # Of two configurations with the same version, the one that was not applied was truncated, even if a
        # replica still reports it.
        voters = frozenset(applied[gid].voters if old else members.voters)
        if voters and voters not in found.setdefault(gid, []):
            found[gid].append(voters)
    return found


def to_be_told(report: ReplicaReport | None, known: MembersReport | None) -> bool:
    """Whether a replica with this report may not know the current members and has to be told.

    In a group whose members never changed there is nothing to tell.
    """
    if known is None or not known.change_id:
        return False
    return report is None or report.members is None or report.members.version < known.version


def _told(reports: Iterable[ReplicaReport | None]) -> list[tuple[int, MembersReport]]:
    return [(r.gid, r.members) for r in reports if r is not None and r.members is not None]
