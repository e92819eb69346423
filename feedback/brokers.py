"""Finding and following the leader of one broker group.

Feedback reaches brokers through two small doors: ``Brokers.call`` (one method of one replica; Ray in
production, memory in tests) and ``GroupLeader.ask`` (the same at whoever leads now). A leader's death
is learnt from its peers, never from Ray, which reports it seconds later; a call that went to a replica
that no longer leads is abandoned and sent again. It must never resend what is not safe to repeat.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol

from escrowmq.feedback.config import LeaderTiming
from escrowmq.replication.errors import EscrowMQError, Unavailable


class BrokerUnreachable(EscrowMQError):
    """The replica did not answer (dead, restarting, never started). What became of the call is not known."""


class Brokers(Protocol):
    """Calls to single replicas. Every failure to get an answer is BrokerUnreachable."""

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any: ...


class GroupLeader:
    """The leader of one group as far as it is known here. One event loop."""

    def __init__(
        self, gid: int, replicas: int, brokers: Brokers, timing: LeaderTiming, rng: random.Random
    ) -> None:
        self.gid, self.replicas = gid, replicas
        self.leader: int | None = None
        self.term = -1
        self._brokers, self._timing, self._rng = brokers, timing, rng
        self._probes: dict[int, tuple[asyncio.Task[None], float]] = {}
        self._unanswered = [0] * replicas
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._next_probe = rng.randrange(replicas)

    async def ask(
        self, method: str, *args: Any, patience_s: float, repeatable: bool = True
    ) -> tuple[Any, ...]:
        """The leader's answer, whoever that is; never ``("not_leader", ...)``.

        Raises Unavailable after ``patience_s``; for a call that is not ``repeatable`` also as soon as its
        fate is not known. In both cases it may or may not have taken effect.
        """
        give_up = _now() + patience_s
        while True:
            rid = self.leader
            if rid is None:
                rid = await self._search(give_up)
            answer = await self._attempt(rid, method, args, give_up)
            if answer is None:
                if not repeatable:
                    raise Unavailable(f"lost group {self.gid}'s leader during {method}", 0.5)
                continue
            if answer[0] != "not_leader":
                return answer
            if self.leader == rid:
                self.leader = None
            self._hear(rid, (False, answer[1], answer[2]))
            await asyncio.sleep(self._timing.search_every_s / 2)

    async def _attempt(
        self, rid: int, method: str, args: tuple[Any, ...], give_up: float
    ) -> tuple[Any, ...] | None:
        """One call; None when the replica is gone or another one leads meanwhile."""
        call = asyncio.ensure_future(self._brokers.call(self.gid, rid, method, *args))
        try:
            while True:
                left = give_up - _now()
                await asyncio.wait({call}, timeout=min(self._timing.probe_every_s, max(left, 0.0)))
                if call.done():
                    return tuple(call.result())
                if left <= 0:
                    raise Unavailable(f"no answer from group {self.gid} to {method}", 0.5)
                if self.leader != rid and self.leader is not None:
                    return None
                self._probe_another(rid)
        except BrokerUnreachable:
            if self.leader == rid:
                self.leader = None
            return None
        finally:
            if not call.done():
                self._abandon(call)

    async def _search(self, give_up: float) -> int:
        """Ask all replicas until one leads."""
        while _now() < give_up:
            round_ends = _now() + self._timing.search_every_s
            probes = [self._probe(rid) for rid in range(self.replicas)]
            while probes and _now() < round_ends:
                await asyncio.wait(probes, timeout=round_ends - _now(), return_when=asyncio.FIRST_COMPLETED)
                if self.leader is not None:
                    return self.leader
                probes = [probe for probe in probes if not probe.done()]
            await asyncio.sleep(max(round_ends - _now(), 0.0) * self._rng.uniform(0.8, 1.0))
        raise Unavailable(f"group {self.gid} has no leader", 0.5)

    def _probe_another(self, rid: int) -> None:
        if self.replicas > 1:
            self._next_probe = (self._next_probe + 1) % self.replicas
            if self._next_probe == rid:
                self._next_probe = (self._next_probe + 1) % self.replicas
            self._probe(self._next_probe)

    def _probe(self, rid: int) -> asyncio.Task[None]:
        """Ask ``rid`` who leads. A question without answer is repeated ever more rarely: a frozen
        process would otherwise collect calls without end."""
        known = self._probes.get(rid)
        if known is not None and not known[0].done():
            task, since = known
            if _now() - since < self._timing.probe_timeout_s * 2 ** self._unanswered[rid]:
                return task
            self._unanswered[rid] = min(self._unanswered[rid] + 1, 4)
            self._abandon(task)
        task = asyncio.ensure_future(self._question(rid))
        self._probes[rid] = (task, _now())
        return task

    async def _question(self, rid: int) -> None:
        try:
            reply = await self._brokers.call(self.gid, rid, "whoami")
        except BrokerUnreachable:
            return
        self._unanswered[rid] = 0
        self._hear(rid, reply)

    def _hear(self, rid: int, reply: tuple[bool, int | None, int]) -> None:
        """A replica's word about itself counts from its term on; its word about others only if it is news."""
        ready, leader, term = reply
        if ready and term >= self.term:
            self.leader, self.term = rid, term
        elif not ready and leader is not None and leader != rid and term > self.term:
            self.leader, self.term = leader, term

    def close(self) -> None:
        """Cancel what is still under way."""
        for task in [*self._abandoned, *(task for task, _ in self._probes.values())]:
            task.cancel()

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Leave a call behind without cancelling it; its outcome is of no interest any more."""
        self._abandoned.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
