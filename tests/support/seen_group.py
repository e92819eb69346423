"""Three replicas that have only what the checker looks at, so that a test can make any of them go wrong.

Nothing here follows Raft: a test says what each of them holds, votes and leads. The checker is the real one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from escrowmq.replication.format.membership import Members, encode_members
from escrowmq.replication.log.member_history import MemberHistory
from tests.sim.checks.invariants import Checker

BEGINNING = Members(1, ("a", "b", "c"))


class SeenLog:
    """What the checker asks of a journal: terms by index, what is durable, the ballot."""

    def __init__(self) -> None:
        self.first_index, self.durable_index, self.generation = 1, 1, 0
        self.terms = {1: 0}
        self.ballot: tuple[int, str | None] = (0, None)
        self.damaged: set[int] = set()
        self.members = MemberHistory()
        self.members.begin(0, BEGINNING)

    @property
    def last_index(self) -> int:
        return max(self.terms)

    def term_at(self, index: int) -> int | None:
        return self.terms.get(index)

    def getCurrentTerm(self) -> int:
        return self.ballot[0]

    def getVotedForNodeId(self) -> str | None:
        return self.ballot[1]

    def damaged_after(self, index: int) -> int | None:
        return min((at for at in self.damaged if at > index), default=None)

    def append(self, term: int, *, durable: bool = True) -> None:
        self.terms[max(self.terms) + 1] = term
        if durable:
            self.durable_index = max(self.terms)

    def cut(self, index: int) -> None:
        """Drop the entries from ``index`` on."""
        self.terms = {at: term for at, term in self.terms.items() if at < index}
        self.durable_index, self.generation = min(self.durable_index, index - 1), self.generation + 1


class SeenReplica:
    """What the checker sees of one."""

    def __init__(self, name: str) -> None:
        self.name, self.up, self.learner, self.incarnation = name, True, False, 1
        self.journal = SeenLog()
        self.node: Any = SimpleNamespace(
            term=0, is_leader=False, ready=False, rejoining=False, commit_index=1, applied_index=1
        )
        self.node.members = BEGINNING
        self.node.replicator = SimpleNamespace(progress={})


class SeenGroup:
    """Three replicas and their checker."""

    def __init__(self) -> None:
        self.checker: Any = Checker()
        self.replicas = [SeenReplica(name) for name in ("a", "b", "c")]
        self.a, self.b, self.c = self.replicas
        self.look()

    def look(self) -> None:
        for replica in self.replicas:
            self.checker.look(replica)

    def elect(self, leader: SeenReplica, term: int, *voters: SeenReplica) -> None:
        """``voters`` give their vote; then ``leader`` leads ``term``, and nobody of an earlier one."""
        for voter in voters:
            voter.journal.ballot = (term, leader.name)
            voter.node.term = term
            voter.node.is_leader = voter.node.ready = False
            self.checker.look(voter)
        leader.node.is_leader = leader.node.ready = True
        leader.node.term = term
        peers = [r.name for r in self.replicas if r is not leader]
        leader.node.replicator.progress = {name: SimpleNamespace(match=0) for name in peers}
        self.checker.look(leader)

    def replicate(self, term: int, *replicas: SeenReplica) -> None:
        for replica in replicas:
            replica.journal.append(term)
        self.look()

    def change(self, leader: SeenReplica, members: Members) -> None:
        """``leader`` appends a configuration, and counts by it."""
        leader.journal.append(leader.node.term)
        leader.journal.members.note(leader.journal.last_index, encode_members(members))
        leader.node.members = members
        self.checker.look(leader)

    def acknowledge(self, index: int, term: int) -> None:
        self.checker.acknowledge(self.replicas, index, term)

    def led_by_a(self) -> None:
        """Term 1, led by a; entry 2 is on all three, and acknowledged."""
        self.elect(self.a, 1, self.a, self.b)
        self.replicate(1, self.a, self.b, self.c)
        self.acknowledge(2, 1)
