"""Who leads a broker group, as far as a caller can know. All callers share this one implementation.

It decides which replica gets the next call, what an answer, a hint, a refusal or silence says about the
leader, and when to ask the replicas who leads. The surrounding shell (threads in ``actors``, asyncio in
``feedback``) makes the calls, and decides what becomes of requests that were under way at a lost leader.

The rules:

* **Only a leader's own word proves a term.** A replica that says that it leads and is ready in term T is
  followed if T is above every term proven so far; if T equals the highest, only while no leader is followed.
  So a deposed leader that still believes it leads is never followed again.
* **A hint says which replica to call next, and nothing else.** It is what one replica believes about another:
  it may be old, it carries the term of the replica that gives it (which one that is cut off, restarts or lies
  may have raised far above the group's), and ``whoami`` reads leader and term one after the other. If the
  hint's term were adopted, one such hint would make the follower ignore the real leader, whose term is lower,
  until the group's term has caught up: for ever, if no replica leads in that term. So the term is not
  adopted. Nor does a hint make us leave a leader that answers: only its own refusal or its failure does.
  Then the next call goes to the hinted replica, which saves a question; after REDIRECTS_MAX hints in a row
  all replicas are asked. A hinted replica that is not on our list may have joined since: it is asked too.
* **After a failure, or when the leader does not know an outcome, no leader is followed**: all are asked.
* **Silence alone does not make us leave a leader.** A silent leader may be slow. The replicas are asked who
  leads; a new leader reports itself. A leader that still shows signs of life, however late, is left in peace
  for longer each time: probes from a thousand clients, ten a second, would finish it off.
* **A replica that does not answer a question is asked again, but questions do not pile up there.** A process
  that died may leave a call unanswered for ever, and its successor does not know of it.

``now`` is in seconds of any monotonic clock. For one thread, or one event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from escrowmq.replication.calling.patience import Backoff

#: How many hints in a row are followed without an answer in between. This ends loops of replicas that point
#: at each other.
REDIRECTS_MAX = 3
#: For how long a late sign of life protects a slow leader from further questions.
TRUST = Backoff(first_s=0.2, longest_s=1.0)


@dataclass(frozen=True, slots=True)
class Probing:
    """When replicas are asked who leads: rounds are at least ``every_s`` seconds apart; a question without an
    answer is repeated after ``repeat``."""

    every_s: float
    repeat: Backoff


class LeaderFollower:
    """The leader of one group, which began with ``replicas`` replicas. The module's docstring has the
    rules."""

    def __init__(self, replicas: int, probing: Probing) -> None:
        #: The replicas to ask, and the version of that list: ``follow`` updates both.
        self.members: tuple[int, ...] = tuple(range(replicas))
        self.epoch = 0
        #: Named as the leader although not in ``members``, which may be out of date.
        self.stranger: int | None = None
        #: Where calls go; None: ask who leads.
        self.leader: int | None = None
        #: The highest term that a leader itself has proven; -1: none yet.
        self.term = -1
        #: Until then the leader's silence is not a reason to ask.
        self.trusted_until = float("-inf")
        #: The earliest time of the next round of questions.
        self.next_round = float("-inf")
        self._probing = probing
        self._redirects = self._late_signs = 0
        self._asked_at: dict[int, float] = {}  # of the question under way
        self._unanswered: dict[int, int] = {}  # questions in a row

    def follow(self, epoch: int, members: Iterable[int]) -> None:
        """The group's members, as of configuration ``epoch``; an older list changes nothing. A leader that is
        missing from the new list is not dropped: it hands over before it is removed, and says so itself."""
        found = tuple(sorted(members))
        if epoch <= self.epoch or not found:
            return
        self.epoch, self.members, self.stranger = epoch, found, None
        for table in (self._asked_at, self._unanswered):
            for rid in [rid for rid in table if rid not in found]:
                del table[rid]

    # ------------------------------------------------------------ what replicas say

    def answered(self, rid: int, now: float, *, late: bool = False) -> None:
        """``rid`` answered a call as a leader; ``late``: after a silence long enough to make callers ask."""
        self._redirects = 0
        if not late:
            self._late_signs = 0
        elif rid == self.leader:
            self._alive(now)

    def refused(self, rid: int, hint: int | None, term: int) -> None:
        """``rid`` does not lead. In its term ``term`` it believes that ``hint`` does; None: it knows no
        leader."""
        if rid != self.leader and self.leader is not None:
            return  # a replica that is no longer followed
        self._redirects += 1
        self._named(hint)
        usable = hint is not None and hint >= 0 and hint != rid and term >= self.term
        self.leader = hint if usable and self._redirects <= REDIRECTS_MAX else None

    def failed(self, rid: int) -> None:
        """``rid`` could not be called, or cannot tell the outcome of a call."""
        if self.leader == rid:
            self.leader = None

    def heard(self, rid: int, ready: bool, term: int, now: float, hint: int | None = None) -> bool:
        """The answer to a question: whether ``rid`` leads and is ready, and its term; ``hint``: the replica
        that it believes leads. Returns True if a new leadership began, perhaps of the same replica: calls to
        the old one that were not answered are lost or late."""
        self.unheard(rid)
        self._unanswered.pop(rid, None)
        if not ready:
            self._named(hint)
            return False
        if term > self.term or (self.leader is None and term == self.term):
            self.leader, self.term, self._redirects = rid, term, 0
            self._late_signs, self.trusted_until = 0, float("-inf")
            return True
        if rid == self.leader and term == self.term:
            self._alive(now)
        return False

    def unheard(self, rid: int) -> None:
        """A question ended without an answer: ``rid`` may be asked again immediately."""
        self._asked_at.pop(rid, None)

    def is_rumour(self, rid: int, hint: int | None, term: int) -> bool:
        """Whether ``rid`` hints at a leadership that is new to us: worth a round of questions for callers
        that do not ask all replicas anyway. It is no reason to leave the leader (see the rules)."""
        return hint is not None and hint != self.leader and hint != rid and term > self.term

    def _named(self, hint: int | None) -> None:
        if hint is not None and hint >= 0 and hint not in self.members:
            self.stranger = hint

    def _alive(self, now: float) -> None:
        self.trusted_until = now + TRUST.pause_s(self._late_signs)
        self._late_signs += 1

    # ------------------------------------------------------------ questions to put

    def round(self, now: float) -> list[int]:
        """The replicas to ask now: all with no question under way; none if the last round is too recent."""
        if now < self.next_round:
            return []
        self.next_round = now + self._probing.every_s
        everybody = self.members if self.stranger is None else (*self.members, self.stranger)
        return [rid for rid in everybody if self.ask(rid, now)]

    def ask(self, rid: int, now: float) -> bool:
        """Whether to ask ``rid`` now; if so, this counts as asking. One question at a time; it is repeated
        when it has had no answer for too long."""
        asked_at = self._asked_at.get(rid)
        if asked_at is not None:
            unanswered = self._unanswered.get(rid, 0)
            if now < asked_at + self._probing.repeat.pause_s(unanswered):
                return False
            self._unanswered[rid] = unanswered + 1
        self._asked_at[rid] = now
        return True
