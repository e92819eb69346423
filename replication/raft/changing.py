"""What a leader knows and checks before it changes the group's members (members.py has the rules and why).

It exists for one leadership, as the replicator does: a learner's rounds begin anew with a new leader.
"""

from __future__ import annotations

from escrowmq.replication.raft.members import ROUNDS, Act, Circle, Rounds, Step, refusal
from escrowmq.replication.raft.pysync import Core
from escrowmq.replication.raft.types import Log


class MemberChanges:
    """Of one replica; asked only while it leads."""

    def __init__(self, circle: Circle, core: Core, journal: Log) -> None:
        self._circle, self._core, self._journal = circle, core, journal
        self._rounds: dict[str, Rounds] = {}

    def begin(self) -> None:
        """Leadership begins, or ends."""
        self._rounds = {}

    def forget(self, replica: str) -> None:
        """It lost its disk: what it had reached counts no longer."""
        self._rounds.pop(replica, None)

    def watch(self) -> None:
        """At every tick while there are learners."""
        last, learners = self._journal.last_index, self._circle.learners
        for replica in learners:
            rounds = self._rounds.get(replica)
            if rounds is None:
                self._rounds[replica] = Rounds(last)
            else:
                rounds.look(self._core.match_index(replica), last)
        for replica in [replica for replica in self._rounds if replica not in learners]:
            del self._rounds[replica]

    # -------------------------------------------------------------- the rules
    def refusal(self, step: Step) -> str | None:
        """Why the leader does not take this step now; None: it does."""
        why = refusal(self._circle.members, step, self._circle.id)
        if why is None and not self.own_term_applied():
            why = "this leader has not applied an entry of its own term yet"
        if why is None and not self.last_change_applied():
            why = "the change before is not applied yet"
        if why is None and step.act is Act.PROMOTE and not self.caught_up(step.replica):
            why = f"{step.replica} has not caught up yet"
        return why

    def own_term_applied(self) -> bool:
        noop = self._core.noop_index()
        return noop is not None and self._core.applied_index() >= noop

    def last_change_applied(self) -> bool:
        return self._core.applied_index() >= self._journal.members.newest_index

    def caught_up(self, replica: str) -> bool:
        """Whether this learner's disk has reached the leader's last index in as many rounds as it takes."""
        rounds = self._rounds.get(replica)
        return rounds is not None and rounds.done >= ROUNDS
