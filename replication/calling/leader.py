"""Who leads a broker group, as far as a caller can know: the one follower below all callers.

It decides to which replica the next call goes, what an answer, a hint, a refusal or a silence says about the
leader, and when the replicas are asked who leads. The calls themselves, and what becomes of requests that
were under way at a lost leader, are the business of the shell around it (threads in ``actors``, asyncio in
``feedback``).

The rules:

* **Only a leader's own word proves a term.** A replica that says that it leads and is ready in term T is
  followed if T is above every term proven so far; an equal one only while nobody is followed. So a deposed
  leader that still believes in itself is never followed back.
* **A hint says whom to call next, and nothing else.** It is what one replica believes of another one: it may
  be old, it comes with the term of whoever gives it (which a replica that is cut off, restarts or lies may
  have counted up far above the group's), and ``whoami`` reads leader and term one after the other. If the
  term were taken over, one such hint would make the follower deaf to the real leader, whose term is lower,
  for as long as the group needs to count up to it: for good, where nobody leads in that term. So the term is
  not taken over. Nor does a hint part us from a leader that answers: only its own refusal does, or its
  failure. Then the next call goes to whom it hints at, which saves a question; REDIRECTS_MAX hints later all
  replicas are asked. Who is hinted at and is not on our list may have come since: it is asked with them.
* **A failure, or an outcome that the leader does not know, means that nobody is followed**: all are asked.
* **Silence parts us from nobody.** A silent leader may be slow. The replicas are asked who leads; a new
  leader says so itself. A leader that shows signs of life, late as they are, is left in peace for longer each
  time: probes from a thousand clients, ten a second, would finish it off.
* **A replica that does not answer a question is asked again, but questions do not pile up there.** A process
  that died may leave a call without answer for ever, and its successor does not know of it.

``now`` is in seconds of any steady clock. One thread, or one event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from escrowmq.replication.calling.backoff import Backoff

#: So many hints in a row are followed without an answer in between: replicas that point at each other end
#: here.
REDIRECTS_MAX = 3
#: For how long signs of life of a slow leader keep it from being questioned.
TRUST = Backoff(first_s=0.2, longest_s=1.0)


@dataclass(frozen=True, slots=True)
class Probing:
    """When replicas are asked who leads: rounds ``every_s`` seconds apart at the most; a question that stays
    without answer is put again after ``repeat``."""

    every_s: float
    repeat: Backoff


class LeaderFollower:
    """The leader of one group, which began with ``replicas`` replicas. The module's text has the rules."""

    def __init__(self, replicas: int, probing: Probing) -> None:
        #: Whom to ask, and the version of the list: who comes and goes is learned by ``follow``.
        self.members: tuple[int, ...] = tuple(range(replicas))
        self.epoch = 0
        #: Named as the leader, and not on the list, which may be old.
        self.stranger: int | None = None
        #: Where calls go; None: ask who leads.
        self.leader: int | None = None
        #: The highest term that a leader itself has proven; -1: none yet.
        self.term = -1
        #: Until then the leader's silence is no reason to ask.
        self.trusted_until = float("-inf")
        #: When a round of questions may be put at the earliest.
        self.next_round = float("-inf")
        self._probing = probing
        self._redirects = self._late_signs = 0
        self._asked_at: dict[int, float] = {}  # of the question under way
        self._unanswered: dict[int, int] = {}  # questions in a row

    def follow(self, epoch: int, members: Iterable[int]) -> None:
        """The group's members, as of configuration ``epoch``; an older list changes nothing. Nobody who leads
        is left for it: who was removed has handed over, and says so."""
        found = tuple(sorted(members))
        if epoch <= self.epoch or not found:
            return
        self.epoch, self.members, self.stranger = epoch, found, None
        for table in (self._asked_at, self._unanswered):
            for rid in [rid for rid in table if rid not in found]:
                del table[rid]

    # ------------------------------------------------------------ what replicas say

    def answered(self, rid: int, now: float, *, late: bool = False) -> None:
        """``rid`` answered a call as a leader does; ``late``: after the silence that makes one ask."""
        self._redirects = 0
        if not late:
            self._late_signs = 0
        elif rid == self.leader:
            self._alive(now)

    def refused(self, rid: int, hint: int | None, term: int) -> None:
        """``rid`` does not lead. It believes, in its term ``term``, that ``hint`` does; None: it knows of
        none."""
        if rid != self.leader and self.leader is not None:
            return  # somebody who is not followed any more
        self._redirects += 1
        self._named(hint)
        usable = hint is not None and hint >= 0 and hint != rid and term >= self.term
        self.leader = hint if usable and self._redirects <= REDIRECTS_MAX else None

    def failed(self, rid: int) -> None:
        """``rid`` could not be called, or cannot say what became of a call."""
        if self.leader == rid:
            self.leader = None

    def heard(self, rid: int, ready: bool, term: int, now: float, hint: int | None = None) -> bool:
        """The answer to a question: whether ``rid`` leads and is ready, in its term; ``hint``: whom it
        believes to lead. True: a leadership began, perhaps of the same replica; what went to the old one and
        was not answered is lost or late."""
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
        """A question ended without an answer: ``rid`` may be asked again at once."""
        self._asked_at.pop(rid, None)

    def is_rumour(self, rid: int, hint: int | None, term: int) -> bool:
        """Whether ``rid`` speaks of a leadership that is news: worth a round of questions, for those who do
        not ask all replicas anyway. It is no reason to leave the leader (see the rules)."""
        return hint is not None and hint != self.leader and hint != rid and term > self.term

    def _named(self, hint: int | None) -> None:
        if hint is not None and hint >= 0 and hint not in self.members:
            self.stranger = hint

    def _alive(self, now: float) -> None:
        self.trusted_until = now + TRUST.pause_s(self._late_signs)
        self._late_signs += 1

    # ------------------------------------------------------------ questions to put

    def round(self, now: float) -> list[int]:
        """Whom to ask now: everybody who is not being asked; nobody if the last round is too recent."""
        if now < self.next_round:
            return []
        self.next_round = now + self._probing.every_s
        everybody = self.members if self.stranger is None else (*self.members, self.stranger)
        return [rid for rid in everybody if self.ask(rid, now)]

    def ask(self, rid: int, now: float) -> bool:
        """Whether to ask ``rid`` now: if so, this counts as having asked. One question at a time, put again
        when it has been without answer for too long."""
        asked_at = self._asked_at.get(rid)
        if asked_at is not None:
            unanswered = self._unanswered.get(rid, 0)
            if now < asked_at + self._probing.repeat.pause_s(unanswered):
                return False
            self._unanswered[rid] = unanswered + 1
        self._asked_at[rid] = now
        return True
