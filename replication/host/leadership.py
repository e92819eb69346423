"""Reads who leads from another thread than the one in which it changes.

Readiness, leader and term are three values of the node. Read one after the other while the term changes, they
may name a leader of the earlier term together with the later term. Callers would follow that deposed leader
as if it led now, and a coordinator of consumer groups would work in a term in which it does not lead.
"""

from __future__ import annotations

from typing import Protocol

from escrowmq.replication.calling.answers import Leadership

#: Readings until the term stays the same meanwhile. Terms change milliseconds apart at most, and a reading
#: takes microseconds.
READINGS_MAX = 3


class Leading(Protocol):
    """What is read of a node."""

    @property
    def term(self) -> int: ...
    @property
    def leader_id(self) -> str | None: ...
    @property
    def ready(self) -> bool: ...


def read_leadership(node: Leading) -> Leadership:
    """Who leads, all of one term; nobody, if no reading ends in the term in which it began."""
    term = node.term
    for _ in range(READINGS_MAX):
        leader, ready = node.leader_id, node.ready
        if (now := node.term) == term:
            return Leadership(ready, None if leader is None else int(leader), term)
        term = now
    return Leadership(False, None, term)
