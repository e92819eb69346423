"""Feedback in a world of several groups: the real feedback shards, and the producers' real links to them.

A process dies and is restarted; a producer that dies leaves its poll parked there. The querier represents the
application: it looks into the app's database; it may be late, answer UNKNOWN, or fail.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from escrowmq.actors.client.replica_calls import SUPERVISOR_RID
from escrowmq.feedback.answering.query_pool import QueryPool
from escrowmq.feedback.answering.shard_link import AskedCheck, FeedbackLost, GroupTopic, Respondent, ShardLink
from escrowmq.feedback.asking.shard import FeedbackShard
from escrowmq.feedback.brokers import BrokerUnreachable
from escrowmq.feedback.config import AnswererConfig
from escrowmq.feedback.policy import Trouble
from escrowmq.replication.calling.answers import MembersReport
from escrowmq.replication.model import TransactionState
from tests.sim.clients.checkers import CONFIG, DELAYS_S, ROOM, STATES
from tests.sim.environment.world import Violation
from tests.sim.faults.plan import members_change

if TYPE_CHECKING:
    from tests.sim.across.producers import AcrossProducer
    from tests.sim.across.workload import AcrossWorkload

#: The settings as with one group, and those that only the real processes have.
ASKING = replace(
    CONFIG,
    lock_wait_s=0.5,
    answer_s=1.5,
    poll_wait_s=0.5,
    poll_wait_max_s=0.5,
    settle_keep_s=4.0,
    shards=2,
)
MEMBERS_WAIT_S = 1.0
ANSWERING = AnswererConfig(poll_wait_s=0.5, poll_wait_max_s=1.0, working_wait_s=0.2, query_timeout_s=0.5)


class _Brokers:
    """A feedback process's calls to replicas."""

    def __init__(self, clients: AcrossWorkload) -> None:
        self._clients = clients

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        answered = self._clients.loop.create_future()

        def done(answer: Any, error: BaseException | None) -> None:
            if answered.done():
                return
            if error is not None:
                answered.set_exception(BrokerUnreachable(str(error)))
            else:
                answered.set_result(answer)

        self._clients.wire.call(gid, rid, method, args, done)
        return await answered

    async def members(self, gid: int) -> tuple[int, Sequence[int]] | None:
        """See ``AskMembers``."""
        asked = self.call(gid, SUPERVISOR_RID, "members_of", gid)
        try:
            found: MembersReport | None = await asyncio.wait_for(asked, MEMBERS_WAIT_S)
        except (BrokerUnreachable, TimeoutError):
            return None
        return None if found is None else (found.version, found.all)


class _Port:
    """A producer's connection to one life of a feedback process. Calls outlive their caller."""

    def __init__(self, process: FeedbackProcess, app: str) -> None:
        self._process, self._app, self._life = process, app, process.life

    async def poll(
        self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float, fence: bytes
    ) -> tuple[str, Any]:
        call = self._process.shard.poll(self._app, instance, room, working, wait_s, fence)
        return cast("tuple[str, Any]", await self._through(call))

    async def answer(
        self, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]
    ) -> tuple[str, Any]:
        await asyncio.sleep(0.0005)
        self._check()
        return self._process.shard.answer(self._app, instance, answers)

    async def leave(self, instance: str, idle: bool = False) -> None:
        self._check()
        self._process.shard.leave(self._app, instance, idle)

    def _check(self) -> None:
        if self._life != self._process.life:
            raise FeedbackLost("the process was restarted")

    async def _through(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            self._check()
        except FeedbackLost:
            call.close()
            raise
        task = asyncio.ensure_future(call)
        self._process.calls[task] = None
        task.add_done_callback(self._process.calls.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise FeedbackLost("the process has died") from None
            raise


class FeedbackProcess:
    """One of the processes that host the feedback of all apps and topics, through all its restarts."""

    def __init__(self, index: int, clients: AcrossWorkload) -> None:
        self.index, self.life = index, 0
        self.calls: dict[asyncio.Future[Any], None] = {}
        self._clients = clients
        self._rng = clients.many.world.stream(f"feedback-{index}")
        clients.in_loop(self._start)

    def _start(self) -> None:
        scene, brokers = self._clients.scene, _Brokers(self._clients)
        shape = ASKING.shards, scene.groups, scene.size
        members = brokers.members if members_change() else None
        self.shard = FeedbackShard(self.index, *shape, brokers, ASKING, self._rng, members=members)
        self.shard.start()

    def restart(self) -> None:
        """Lose everything in memory; leases at the leaders expire by themselves."""
        self._clients.in_loop(self._restart)

    def _restart(self) -> None:
        self.check()
        for task in [*self.shard._tasks, *self.calls]:
            task.cancel()
        self.life += 1
        self._start()

    def check(self) -> None:
        """Raise Violation if there were errors: its loops survive them, but here there must be none."""
        counts = [self.shard.counts, *(watch.counts for watch in self.shard._watches.values())]
        counts += [pair.counts for pair in self.shard._pairs]
        if errors := sum(counted["errors"] for counted in counts):
            raise Violation(f"feedback process {self.index} met {errors} errors", "client-failed")


class Queries:
    """The application's side of one producer: its querier's answers, by query id."""

    full_room = ROOM

    def __init__(self, producer: AcrossProducer, clients: AcrossWorkload) -> None:
        self._producer, self._clients = producer, clients
        self._rng = clients.many.world.stream(f"querier-{producer.name}")
        self._busy = 0

    @property
    def fence(self) -> bytes:
        """The table that it answers from."""
        return self._producer.core.fence

    @property
    def room(self) -> int:
        return max(ROOM - self._busy, 0)

    async def ask(
        self,
        tx_id: str,
        query_id: str,
        start_within_s: float,
        late: Callable[[TransactionState], None],
    ) -> tuple[TransactionState, Trouble]:
        self._busy += 1
        try:
            self._clients.checked(self._producer.app, query_id)
            delay_s = self._rng.choice(DELAYS_S)
            if delay_s > 0.4:  # the query times out and answers when nothing waits for it
                await asyncio.sleep(0.4)
                self._clients.later(delay_s - 0.4, self._late, query_id, late)
                return TransactionState.UNKNOWN, Trouble.TIMED_OUT
            await asyncio.sleep(delay_s)
            return self._look_up(query_id)
        finally:
            self._busy -= 1

    def _late(self, tx_id: str, late: Callable[[TransactionState], None]) -> None:
        if self._producer.alive:
            self._clients.in_loop(lambda: late(self._look_up(tx_id)[0]))

    def _look_up(self, tx_id: str) -> tuple[TransactionState, Trouble]:
        ledger, app = self._clients.ledger, self._producer.app
        chance = 1.0 if self._clients.many.calm else self._rng.random()
        if chance < 0.08:
            return TransactionState.UNKNOWN, Trouble.RAISED
        if chance < 0.2:
            return TransactionState.UNKNOWN, Trouble.NONE
        tx = ledger.of(app, tx_id)
        if not tx.has_local:
            outcome = self._rng.choice(("COMMITTED", "ROLLBACK"))
            self._clients.answered(app, tx_id, outcome)
            return STATES[outcome], Trouble.NONE
        # A local transaction may still run in another process. A fence decides which of the two wins; without
        # one, asking the owner first must be enough (guide, "The querier").
        if self._clients.scene.fence or tx.fenced:
            outcome = ledger.local(app, tx_id) or ledger.settle_locally(app, tx_id, "ROLLBACK")
        else:
            outcome = ledger.local(app, tx_id) or ledger.no_row(app, tx_id)
        self._clients.answered(app, tx_id, outcome)
        return STATES[outcome], Trouble.NONE


class Links:
    """One producer's links to the feedback processes."""

    def __init__(
        self, producer: AcrossProducer, processes: Sequence[FeedbackProcess], clients: AcrossWorkload
    ) -> None:
        self._producer, self._clients = producer, clients

        async def connect(shard: int) -> _Port:
            await asyncio.sleep(0.001)
            return _Port(processes[shard], producer.app)

        respondent = Respondent(
            instance=producer.name,
            connect=connect,
            pool=cast(QueryPool, Queries(producer, clients)),
            still_running=self._still_running,
            config=ANSWERING,
            rng=random.Random(producer.name),
        )
        self._links = [ShardLink(process.index, respondent) for process in processes]
        self._tasks: list[asyncio.Task[None]] = []
        clients.in_loop(self._start)

    def _start(self) -> None:
        self._tasks = [asyncio.ensure_future(link.run()) for link in self._links]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._clients.loop.fail(
                Violation(f"a link of {self._producer.name} ended: {error!r}", "client-failed")
            )

    def _still_running(self, tx_id: str) -> bool:
        producer = self._producer
        if tx_id not in producer.core.running:
            return False
        tx = self._clients.ledger.run_by(producer.app, tx_id, producer.name)
        self._clients.checked(producer.app, tx.tx)
        return True

    def end(self) -> None:
        """Its process has died, without leaving the feedback processes."""
        self._clients.in_loop(self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
