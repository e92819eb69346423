"""Calls to broker groups: to single replicas, and to the current leader.

Feedback reaches brokers through two small interfaces: ``Brokers.call`` (one method of one replica; Ray in
production, memory in tests) and ``GroupLeader.ask`` (one method of the current leader). The follower
(replication/calling/leader.py) decides who leads. A leader's death is learnt from its peers, never from
Ray, which reports it seconds later; a call to a replica that no longer leads is abandoned and sent
again. This must never resend a call that is not safe to repeat.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from escrowmq.feedback.config import LeaderTiming
from escrowmq.replication.calling.leader import LeaderFollower, Probing
from escrowmq.replication.calling.patience import Backoff
from escrowmq.replication.errors import EscrowMQError, Unavailable


class BrokerUnreachable(EscrowMQError):
    """The replica did not answer (dead, restarting, never started). The outcome of the call is not known."""


class Brokers(Protocol):
    """Calls to single replicas. Every failure to get an answer is BrokerUnreachable."""

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any: ...


#: Returns a group's present members: the version of the list, and their numbers; None: not known.
AskMembers = Callable[[int], Awaitable[tuple[int, Sequence[int]] | None]]
#: After this time without a leader (an election takes less) the group may have other replicas than those
#: asked.
ASTRAY_S = 2.0


class GroupLeader:
    """The leader of one group as far as it is known here. One event loop."""

    def __init__(
        self,
        gid: int,
        replicas: int,
        brokers: Brokers,
        timing: LeaderTiming,
        rng: random.Random,
        members: AskMembers | None = None,
    ) -> None:
        """``members``: called when no leader is found for a while; None: the members never change."""
        self.gid, self._members = gid, members
        self._looking: asyncio.Task[None] | None = None
        self._brokers, self._timing = brokers, timing
        # Growing pauses: a call is always under way here, and otherwise a frozen process would collect
        # questions without limit.
        repeat = Backoff(first_s=timing.probe_timeout_s, longest_s=16 * timing.probe_timeout_s)
        self._follower = LeaderFollower(replicas, Probing(timing.search_every_s, repeat))
        self._led = asyncio.Event()  # set when there is a leader again
        self._questions: dict[int, asyncio.Task[None]] = {}
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._asked_last = rng.randrange(replicas)

    @property
    def leader(self) -> int | None:
        """The replica that calls go to, as far as it is known."""
        return self._follower.leader

    @property
    def term(self) -> int:
        """The term of the last leader that said so itself; -1: none yet."""
        return self._follower.term

    async def ask(
        self, method: str, *args: Any, patience_s: float, repeatable: bool = True
    ) -> tuple[Any, ...]:
        """The leader's answer, whichever replica leads; never ``("not_leader", ...)``.

        Raises Unavailable after ``patience_s``; for a call that is not ``repeatable`` also as soon as its
        outcome is not known. In both cases it may or may not have taken effect.
        """
        give_up, follower = _now() + patience_s, self._follower
        while True:
            rid = follower.leader
            if rid is None:
                rid = await self._search(give_up)
            answer = await self._attempt(rid, method, args, give_up)
            if answer is None:
                if not repeatable:
                    raise Unavailable(f"lost group {self.gid}'s leader during {method}", 0.5)
                continue
            if answer[0] == "unknown":
                follower.failed(rid)
            elif answer[0] == "not_leader":
                follower.refused(rid, answer[1], answer[2])
                self._tell()
                await asyncio.sleep(self._timing.search_every_s / 2)
                continue
            else:
                follower.answered(rid, _now())
            return answer

    async def _attempt(
        self, rid: int, method: str, args: tuple[Any, ...], give_up: float
    ) -> tuple[Any, ...] | None:
        """One call; None if the replica is gone or another one leads meanwhile."""
        call = asyncio.ensure_future(self._brokers.call(self.gid, rid, method, *args))
        try:
            while True:
                left = give_up - _now()
                await asyncio.wait({call}, timeout=min(self._timing.probe_every_s, max(left, 0.0)))
                if call.done():
                    return tuple(call.result())
                if left <= 0:
                    raise Unavailable(f"no answer from group {self.gid} to {method}", 0.5)
                if self.leader not in (rid, None):
                    return None
                self._ask_another(rid)
        except BrokerUnreachable:
            self._follower.failed(rid)
            return None
        finally:
            if not call.done():
                self._abandon(call)

    async def _search(self, give_up: float) -> int:
        """Ask all replicas until one of them leads."""
        began = _now()
        while (leader := self.leader) is None:  # also when it was found just as a round ended
            if _now() >= give_up:
                raise Unavailable(f"group {self.gid} has no leader", 0.5)
            self._ask_all()
            if _now() >= began + ASTRAY_S:
                self._ask_members()
            self._led.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(self._follower.next_round, give_up)):
                    await self._led.wait()
        return leader

    # ------------------------------------------------------------ questions

    def _ask_all(self) -> None:
        for rid in self._follower.round(_now()):
            self._put(rid)

    def _ask_members(self) -> None:
        """Once in a search that takes long, and again after each answer."""
        if self._members is not None and (self._looking is None or self._looking.done()):
            self._looking = asyncio.ensure_future(self._look(self._members))

    async def _look(self, members: AskMembers) -> None:
        found = await members(self.gid)
        if found is None:
            await asyncio.sleep(ASTRAY_S)
        else:
            self._follower.follow(*found)

    def _ask_another(self, rid: int) -> None:
        """Ask one of the others, in turn: if there is a new leader, they know it."""
        others = [other for other in self._follower.members if other != rid]
        if others:
            self._asked_last = next((other for other in others if other > self._asked_last), others[0])
            if self._follower.ask(self._asked_last, _now()):
                self._put(self._asked_last)

    def _put(self, rid: int) -> None:
        unanswered = self._questions.get(rid)
        if unanswered is not None and not unanswered.done():
            self._abandon(unanswered)
        self._questions[rid] = asyncio.ensure_future(self._question(rid))

    async def _question(self, rid: int) -> None:
        try:
            ready, hint, term = await self._brokers.call(self.gid, rid, "whoami")
        except BrokerUnreachable:
            self._follower.unheard(rid)
            return
        if self._follower.heard(rid, ready, term, _now(), hint):
            self._tell()
        elif not ready and self._follower.is_rumour(rid, hint, term):
            self._ask_all()

    def _tell(self) -> None:
        if self.leader is not None:
            self._led.set()

    def close(self) -> None:
        """Cancel what is still under way."""
        looking = [] if self._looking is None else [self._looking]
        for task in [*self._abandoned, *self._questions.values(), *looking]:
            task.cancel()

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Leave a call behind without cancelling it; its outcome no longer matters."""
        self._abandoned.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
