"""Several broker groups in memory and the clients' own way over them: no Raft, no threads, time in the test's
hand.

Real are the state machines, what a leader admits, the log and its snapshots (``Single``), a producer's
encoder, flows and batchers, and the pusher and asker of each group's leader (replica/branches.py). A test
says which groups have no leader (``down``), which answers get lost, and when time passes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.actors.client.failures import Failure, FailureKind
from escrowmq.actors.producer.batcher import BuiltRequest, GroupBatcher
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.encoding.blocks import (
    Block,
    DecisionBlock,
    DoneBlock,
    InquireBlock,
    Outcome,
    PrepareBlock,
)
from escrowmq.actors.producer.encoding.encoder import Encoder, TxPlan
from escrowmq.actors.producer.transactions import across_groups
from escrowmq.replication.calling.answers import Standing
from escrowmq.replication.format import ops
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import Message
from escrowmq.replication.replica.branches import Branches
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state.machine import Result
from escrowmq.replication.state.transactions import STATE_OF
from tests.sim.environment.disk import SimDisk
from tests.support.places import by_name
from tests.support.reading import everything, named
from tests.support.requests import UP_TO_DATE
from tests.support.single import Single

APP, TOPIC = "shop", "orders"
PARTITIONS = 12
START_S = 1_000.0


class Group:
    """One broker group, and its leader's work for transactions over several."""

    def __init__(self, world: SeveralGroups, gid: int, groups: int) -> None:
        self.world, self.gid, self.groups = world, gid, groups
        self.single = Single(SimDisk(random.Random(gid)), gid=gid, groups=groups)
        self.single.now_ms = int(START_S * 1000)
        self.single.topic(TOPIC, PARTITIONS, topic_id=1)
        self.branches = Branches(self.single.state, self, self.reported)
        self.reports: list[str] = []

    def reported(self, text: str) -> None:
        self.reports.append(text)

    @property
    def state(self) -> Any:
        return self.single.state

    def submit(self, *frames: bytes, from_broker: bool = False) -> list[Any]:
        """A request, done at once; its results."""
        answers: list[tuple[Any, ...]] = []
        request = b"".join(frames)
        group_and_count = self.gid, self.groups
        parsed = parse_request(request, from_broker=from_broker, group_and_count=group_and_count)
        self.single.replica.submit(request, parsed, answers.append)
        self.single.now_ms = max(self.single.now_ms + 1, self.world.now_ms)
        self.single.replica.pump(self.single.now_ms)
        (answer,) = answers
        assert answer[0] == "ok", answer
        results: list[Any] = answer[1]
        return results

    def step(self) -> None:
        """What the leader does a few times a second."""
        self.single.replica.on_timer(self.world.now_ms)
        self.single.now_ms = max(self.single.now_ms, self.world.now_ms)
        self.single.replica.pump(self.single.now_ms)
        self.branches.step(self.world.now_ms)

    def fail_over(self) -> None:
        """Another replica leads, with the same log; what a leader only remembers is gone."""
        self.single.fail_over()
        self.branches.resign()
        self.branches = Branches(self.single.state, self, self.reported)

    # ------------------------------------------------------------ Links

    def call(self, gid: int, method: str, args: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        self.world.calls.append((self.gid, gid, method))
        if gid in self.world.down or not self.world.serves(method, args[0]):
            self.world.call_later(0.1, lambda: done(None))
            return
        other = self.world.groups[gid]
        answer = other.submit(args[0], from_broker=method == "follow")
        self.world.call_later(0.001, lambda: done(answer))

    def write(self, request: bytes, done: Callable[[Sequence[Result] | None], None]) -> None:
        results = self.submit(request, from_broker=True) if self.world.serves("write", request) else None
        self.world.call_later(0.001, lambda: done(results))

    # ------------------------------------------------------------ what tests look at

    def outcome(self, tx_id: str, app: str = APP) -> str:
        """PREPARE, COMMITTED, ROLLBACK or UNKNOWN."""
        table = self.state.transactions.look(app)
        settled = table.outcome(tx_id)
        return "PREPARE" if tx_id in table.open else STATE_OF[settled].value if settled else "UNKNOWN"

    def decided(self, tx_id: str, app: str = APP) -> Any:
        """What home still owes its branches."""
        return self.state.transactions.look(app).decided.get(tx_id)

    def standing(self, tx_id: str, index: int = -1) -> Standing:
        """As INQUIRE tells it."""
        ((_, (row,)),) = self.submit(ops.inquire(APP, [tx_id], [index]))
        return Standing(*row)

    def forget_settled(self) -> None:
        """Enough others are settled for the ordinary memory to turn over."""
        before = self.state.settings.settled_generation
        self.submit(ops.settings({"settled_generation": 1}))
        for _ in range(2):
            tx_id = f"other-{next(self.world.numbers)}"
            self.submit(ops.prepare(APP, TOPIC, [tx_id], None, 0, 0, [1], -1, 0, UP_TO_DATE))
            self.submit(ops.commit(APP, [tx_id]))
        self.submit(ops.settings({"settled_generation": before}))

    def texts(self) -> list[str]:
        """What is readable here."""
        mine = [p for p in range(PARTITIONS) if by_name(TOPIC, p, self.groups) == self.gid]
        return [text for p in mine for text in named(everything(self.single.replica.fetch, TOPIC, p))]


class SeveralGroups:
    """The groups, one virtual time, and clients' calls."""

    def __init__(self, groups: int = 2) -> None:
        self.now = START_S
        self.numbers = itertools.count()
        self.down: set[int] = set()
        #: Asked of each request of a client: True if its answer gets lost.
        self.lose: Callable[[int, bytes], bool] = lambda gid, request: False
        #: Asked of each request between groups, and of what a leader itself writes: False if it is refused.
        self.serves: Callable[[str, bytes], bool] = lambda method, request: True
        self.calls: list[tuple[int, int, str]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self.groups = [Group(self, gid, groups) for gid in range(groups)]

    @property
    def now_ms(self) -> int:
        return int(self.now * 1000)

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + delay_s, next(self.numbers), work))

    def run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    def pass_time(self, seconds: float, *, leaders: bool = True) -> None:
        """Time passes, and the leaders of the groups that have one do their work (unless told not to)."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + (0.05 if seconds <= 10 else 0.5), until)
            self.run_timers()
            for group in self.groups if leaders else ():
                if group.gid not in self.down:
                    group.step()

    def outcomes(self, tx_id: str) -> list[str]:
        return [group.outcome(tx_id) for group in self.groups]

    def readable(self) -> list[list[str]]:
        return [group.texts() for group in self.groups]


class Client:
    """A producer's own flows and queues over the groups. ``dead``: it neither sends nor hears any more."""

    def __init__(self, world: SeveralGroups, *, instance: str = "client") -> None:
        self.world, self.dead = world, False
        self.config = ProducerConfig()
        self.encoder = Encoder(
            self.config,
            lambda topic: PARTITIONS,
            lambda topic, partition: by_name(topic, partition, len(world.groups)),
        )
        self.batchers = [GroupBatcher(APP, self.config, instance) for _ in world.groups]
        self.dies_before: Callable[[int, Block], bool] = lambda gid, block: False

    # ------------------------------------------------------------ Sender

    def clock(self) -> float:
        return self.world.now

    def call_later(self, delay_s: float, work: Callable[[], None]) -> None:
        self.world.call_later(delay_s, work)

    def timeout_s(self, block: PrepareBlock) -> float:
        return (block.timeout_ms or 6_000) / 1000

    def enqueue(self, gid: int, block: Block) -> None:
        self.dead = self.dead or self.dies_before(gid, block)
        if self.dead:
            return
        block.deadline = self.world.now + 30.0
        batcher, now = self.batchers[gid], self.world.now
        if isinstance(block, PrepareBlock):
            batcher.prepare(block, now)
        elif isinstance(block, DecisionBlock):
            batcher.decide(block, now)
        elif isinstance(block, DoneBlock):
            batcher.tell_done(block, now)
        else:
            assert isinstance(block, InquireBlock)
            batcher.inquire(block, now)

    # ------------------------------------------------------------ what tests do

    def run(self) -> None:
        """Send and hear until nothing waits."""
        while sum(self._send(gid, batcher) for gid, batcher in enumerate(self.batchers)):
            pass

    def _send(self, gid: int, batcher: GroupBatcher) -> bool:
        built = batcher.build()
        if built is None:
            return False
        answer = self._answer(gid, built)
        if not self.dead:
            batcher.answered(built, answer, False)
        return True

    def _answer(self, gid: int, built: BuiltRequest) -> Any:
        if gid in self.world.down:
            return Failure(FailureKind.UNAVAILABLE, "no leader")
        request = b"".join(built.frames)
        group = self.world.groups[gid]
        results = group.submit(request)
        if self.world.lose(gid, request):
            return Failure(FailureKind.UNKNOWN, "lost")
        return "ok", results, group.state.now_ms

    def plan(self, tx_id: str, *, given: bool = False, timeout_ms: int = 0) -> TxPlan:
        """A transaction with one message in each group, home in group 0."""
        groups = len(self.world.groups)
        partition = {by_name(TOPIC, p, groups): p for p in reversed(range(PARTITIONS))}
        messages = [
            Message(TOPIC, f"{tx_id}.{gid}".encode(), partition=partition[gid]) for gid in range(groups)
        ]
        encoded, size = self.encoder.encode(messages, tx_id)
        return self.encoder.plan(tx_id, tx_id, encoded, size, timeout_ms, given)

    def prepare(self, plan: TxPlan) -> Outcome | None:
        """What the caller is told; None: nothing yet."""
        told: list[Outcome] = []
        across_groups.prepare(self, plan, told.append)
        self.run()
        return told[0] if told else None

    def settle(self, plan: TxPlan, commit: bool = True) -> Outcome | None:
        """Decide it; what the caller is told."""
        told: list[Outcome] = []
        across_groups.settle(self, plan.tx_id, plan.groups, commit, told.append, plan.home_index)
        self.run()
        return told[0] if told else None


# ---------------------------------------------------------------- what several tests begin and end with
CHECK_S = 6.0
#: A branch follows after its group's leader was killed; and the leader's work of a few calls.
FOLLOWS_S = 2.0


def prepared(world: SeveralGroups, tx_id: str = "x", **options: bool) -> tuple[Client, object]:
    client = Client(world)
    plan = client.plan(tx_id, **options)
    assert client.prepare(plan) == {} and world.outcomes(tx_id) == ["PREPARE"] * len(world.groups)
    return client, plan


def committed_at_home(world: SeveralGroups, tx_id: str = "x") -> Client:
    """Home has decided, and the client died before it told anybody else."""
    client = Client(world)
    plan = client.plan(tx_id)
    assert client.prepare(plan) == {}
    client.dies_before = lambda gid, block: gid != 0
    assert client.settle(plan) is None
    assert world.outcomes(tx_id) == ["COMMITTED", *["PREPARE"] * (len(world.groups) - 1)]
    return client


def late_extra(index: int) -> PrepareExtra:
    """Of a branch's PREPARE that is so late that its id may be forgotten, and is not refused as stale: its
    client had heard of a time far ahead."""
    return PrepareExtra(home_index=[index], heard_ms=1 << 50)


def nothing_left(world: SeveralGroups) -> bool:
    """No transaction is open, and home owes nobody anything."""
    return all(
        group.state.transactions.open_count() == 0 and group.state.transactions.across.decided == 0
        for group in world.groups
    )


def committed_at_home_while_branch_is_down(world: SeveralGroups) -> None:
    world.down = set()
    client, plan = prepared(world)
    world.down = {1}
    assert client.settle(plan) == {}  # type: ignore[arg-type]


def torn(world: SeveralGroups, tx_id: str = "x") -> bool:
    return len(set(world.outcomes(tx_id))) > 1


def branch(index: int, tx_id: str = "x", digest: int = 1, **more: int) -> bytes:
    """A branch's PREPARE in group 1, without messages."""
    extra = PrepareExtra(home_index=[index], heard_ms=1 << 50, **more)
    return ops.prepare(APP, TOPIC, [tx_id], None, 0, 0, [digest], 0, 0, extra)
