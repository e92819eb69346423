"""Broker groups in memory behind the network's edge: each is a ``Single`` in virtual time.

Not real: Raft (an entry is committed when proposed, and the test names the leader) and the
wire (a call takes a millisecond, a dead replica answers after a second and a half as with Ray, a frozen
one never).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast

from escrowmq.feedback.brokers import BrokerUnreachable
from escrowmq.replication.calling.answers import DuePairs, Leadership, Reply
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.host.due_checks import DueChecks
from escrowmq.replication.host.inspection import Inspection
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.transactions import STATE_OF
from tests.sim.environment.disk import SimDisk
from tests.support.clock import now
from tests.support.places import by_name
from tests.support.requests import Submitting, prepare
from tests.support.single import Single

RAY_NOTICES_DEATH_S = 1.5
FIRST_PLACES = 8


class GroupDouble(Submitting):
    """One broker group."""

    def __init__(self, gid: int, groups: int, replicas: int = 3) -> None:
        self.gid, self.groups, self.replicas = gid, groups, replicas
        self.leader: int | None = 0
        self.dead: set[int] = set()
        self.frozen: set[int] = set()
        self.single = Single(SimDisk(random.Random(gid)), gid=gid, groups=groups)
        self.state = self.single.state
        self.calls: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.most_under_way: Counter[str] = Counter()
        #: Replicas that refuse, and with which answer, true or not.
        self.hints: dict[int, tuple[Any, ...]] = {}
        #: Gets each answer on its way back, by the call's name; what it returns arrives.
        self.on_the_way: Callable[[str, Any], Awaitable[Any]] | None = None
        self.checked: Counter[str] = Counter()  # transaction -> CHECKED operations
        self.lose_next_reply = False
        self.refuse: list[tuple[Any, ...]] = []  # answers for the next submits instead of doing them
        self.poll_places = FIRST_PLACES
        self.parked_calls = 0  # at most, at a time

    # ------------------------------------------------------------ what tests do

    @property
    def term(self) -> int:
        return self.single.node.term

    @property
    def entries(self) -> list[bytes]:
        """The commands in the log."""
        journal = self.single.journal
        return [journal.read(index) for index in range(1, journal.last_index + 1)]

    def now_ms(self) -> int:
        return int(now() * 1000)

    def submit(self, *frames: bytes) -> list[Any]:
        """One entry, committed at once; its results."""
        request = b"".join(frames)
        for op in parse_request(request):
            if op.type == OpType.CHECKED:
                self.checked.update(op.meta.tx_ids)
        (answer,) = self.single.send(request, now_ms=self.now_ms())
        assert answer[0] == "ok", answer
        results: list[Any] = answer[1]
        return results

    def prepare(
        self,
        tx_id: str,
        *,
        app: str = "shop",
        topic: str = "orders",
        query_id: str | None = None,
        timeout_ms: int = 100,
        home_group: int = -1,
        instance: str = "",
    ) -> None:
        """A transaction of one message, as a producer that then vanished left it behind. ``instance``: who
        that was."""
        here = next(n for n in range(self.groups) if by_name(topic, n, self.groups) == self.gid)
        extra = PrepareExtra(instance=instance, heard_ms=self.now_ms() + 1)
        request = prepare(
            [tx_id],
            topic=topic,
            app=app,
            partition=here,
            query_ids=[query_id or tx_id],
            timeout_ms=timeout_ms,
            home_group=home_group,
            extra=extra if instance else None,
        )
        assert self.submit(request) == [[0]]

    def outcome(self, tx_id: str, app: str = "shop") -> str:
        table = self.state.transactions.app(app)
        settled = table.outcome(tx_id)
        return "PREPARE" if tx_id in table.open else STATE_OF[settled].value if settled else "UNKNOWN"

    def open(self, tx_id: str, app: str = "shop") -> Any:
        return self.state.transactions.app(app).open[tx_id]

    def fail_over(self, to: int) -> None:
        """Another replica leads; leases and what was being decided are forgotten."""
        self.leader = to
        self.single.fail_over()

    # ------------------------------------------------------------ the replicas' methods

    async def call(self, rid: int, method: str, *args: Any) -> Any:
        self.calls[method] += 1
        self.under_way[method] += 1
        self.most_under_way[method] = max(self.most_under_way[method], self.under_way[method])
        try:
            return await self._call(rid, method, *args)
        finally:
            self.under_way[method] -= 1

    async def _call(self, rid: int, method: str, *args: Any) -> Any:
        if rid in self.frozen:
            await asyncio.get_running_loop().create_future()
        if rid in self.dead:
            await asyncio.sleep(RAY_NOTICES_DEATH_S)
            raise BrokerUnreachable("dead")
        await asyncio.sleep(0.001)
        reply = await getattr(self, f"_{method}")(rid, *args)
        if self.on_the_way is not None:
            reply = await self.on_the_way(method, reply)
        await asyncio.sleep(0.001)
        if rid in self.frozen:
            await asyncio.get_running_loop().create_future()
        if rid in self.dead:
            await asyncio.sleep(RAY_NOTICES_DEATH_S)
            raise BrokerUnreachable("died while answering")
        return reply

    def _not_leader(self, rid: int) -> tuple[Any, ...] | None:
        if rid in self.hints:
            return self.hints[rid]
        return None if rid == self.leader else Leadership(False, self.leader, self.term).refusal()

    async def _whoami(self, rid: int) -> Leadership:
        return Leadership(rid == self.leader, self.leader, self.term)

    async def _submit(self, rid: int, request: bytes) -> tuple[Any, ...]:
        refused = self._not_leader(rid)
        if refused is not None:
            return refused
        if self.refuse:
            return self.refuse.pop(0)
        results = self.submit(request)
        if self.lose_next_reply:
            self.lose_next_reply = False
            return ("unknown",)
        return ("ok", results)

    async def _due_pairs(self, rid: int, term: int, seen: int, part: int, parts: int, wait_s: float) -> Reply:
        asked, at = self._due_checks(rid), DuePairs(term, seen)

        def look() -> Reply:
            nonlocal at
            answer = asked.due_pairs(at.term, at.seen, part, parts, 0.0)
            at = answer[1] if answer[0] == "ok" else at
            return answer

        return await self._parked(wait_s, look, lambda found: bool(found.pairs))

    async def _parked(self, wait_s: float, look: Callable[[], Reply], enough: Callable[[Any], bool]) -> Reply:
        """``look`` until there is enough, or the time is up; at once where too many calls are parked."""
        until = now() + (wait_s if self.poll_places > 0 else 0.0)
        self.poll_places -= 1
        self.parked_calls = max(self.parked_calls, FIRST_PLACES - self.poll_places)
        try:
            while True:
                answer = look()
                if answer[0] != "ok" or enough(answer[1]) or now() >= until:
                    return answer
                await asyncio.sleep(0.05)
        finally:
            self.poll_places += 1

    async def _lock_pairs(self, rid: int, *arguments: Any) -> Reply:
        return self._due_checks(rid).lock_pairs(*arguments)

    async def _open_pairs(self, rid: int, *arguments: Any) -> Reply:
        return self._due_checks(rid).open_pairs(*arguments)

    async def _release_locks(self, rid: int, *arguments: Any) -> Reply:
        return self._due_checks(rid).release_locks(*arguments)

    async def _tx_states(self, rid: int, app: str, tx_ids: list[str]) -> Reply:
        return self._inspection(rid).tx_states(app, tx_ids)

    async def _transactions(self, rid: int, *arguments: Any) -> Reply:
        return self._inspection(rid).transactions(*arguments)

    def _due_checks(self, rid: int) -> DueChecks:
        return DueChecks(cast(RunningReplica, Asked(self, rid)))

    def _inspection(self, rid: int) -> Inspection:
        return Inspection(cast(RunningReplica, Asked(self, rid)))


class Asked:
    """As much of a running replica as its parts need, so that their own answers are given: it has no thread,
    and who must wait looks again later."""

    def __init__(self, group: GroupDouble, rid: int) -> None:
        self._group, self._rid = group, rid
        self.replica, self.node, self.checks_due = group.single.replica, group.single.node, self

    def now_ms(self) -> int:
        return self._group.now_ms()

    def led(self, read: Callable[[], Any]) -> Reply:
        return self._group._not_leader(self._rid) or ("ok", read())

    def if_leading(self, read: Callable[[StateMachine], Any]) -> Reply:
        return self.led(lambda: read(self.replica.state))

    def later(self, fn: Callable[[], None]) -> None:
        fn()

    def wait_for(self, attempt: Callable[[], Reply | None], wait_s: float) -> Reply | None:
        self.replica.state.due.advance(self.now_ms())
        return attempt()


class BrokersDouble:
    """All groups; ``Brokers`` for the code under test."""

    def __init__(self, groups: int = 1, replicas: int = 3) -> None:
        self.groups = [GroupDouble(gid, groups, replicas) for gid in range(groups)]

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        return await self.groups[gid].call(rid, method, *args)
