"""What all clients together know about every transaction: its true outcome, its history, and its phases.

The local databases are here and survive every crash. A row is written once: by the local transaction, or by a
check that found none and prevents the transaction for good (a fence). Every change of phase is recorded with
its time, so that coverage.py can tell in which phases of which transactions a fault struck.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from escrowmq.replication.format.codec import Op, decode_command
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.machine import Result
from escrowmq.replication.state.transactions import STATE_OF, AppTransactions
from tests.history.checker import Checker
from tests.history.events import Event, Recorder, Sent
from tests.sim.clients.delayed import APP as DELAYED
from tests.sim.environment.world import Violation, World
from tests.sim.recreated.model import APP as RECREATED
from tests.sim.running.coverage import AnyPhase, Phase


class LiveRecorder(Recorder):
    """A recorder whose events are checked at once; the first anomaly ends the schedule."""

    def __init__(self, clock: Callable[[], int]) -> None:
        super().__init__("clients", clock=clock)
        self.checker = Checker()

    def _add(self, phase: str, kind: str, op: int, fields: dict[str, object]) -> None:
        event = Event(self._clock(), self.process, phase, kind, op, fields)
        self.events.append(event)
        self.checker.feed(event)
        self.judge()

    def judge(self) -> None:
        """Raise what was found."""
        if not self.checker.report.ok:
            first = self.checker.report.anomalies[0]
            raise Violation(str(first), first.kind)


_WITHOUT_RESULT = frozenset(
    {
        OpType.PRE_MESSAGE,
        OpType.PRE_SCHEDULED,
        OpType.PRE_OFFSETS,
        OpType.PRE_LETTERS,
        OpType.REF_MESSAGE,
        OpType.TX_MESSAGE,
    }
    | {OpType.TIMER, OpType.RELEASE, OpType.FORWARD, OpType.CARRY}
)
#: The app of pipelines, which hold their outputs against the group's offsets.
PIPELINE = "pipeline"
#: The app of those who redrive dead letters into topics (sharing/redirects.py).
REDIRECTS = "redirects"
APART = frozenset({DELAYED, RECREATED, PIPELINE, REDIRECTS, "named"})
OF_TRANSACTIONS = frozenset({OpType.PREPARE, OpType.COMMIT, OpType.ROLLBACK})
#: Topic, and rows by part: (part, (topic, partition), row).
Content = tuple[str, list[tuple[int, tuple[str, int], bytes]]]


@dataclass(eq=False, slots=True)
class ClientTx:
    """One transaction, from its start in the producer to its end."""

    app: str
    tx: str
    sent: list[Sent]
    parts: int
    producer: str
    prepared: bool = False
    running: bool = False  # its local transaction is running, in a live producer
    has_local: bool = True  # it has a local transaction, which decides; otherwise any answer is right
    fenced: bool = False  # a check that finds no row for it writes one
    content: Content | None = (
        None  # its content, if the application gave its id: another producer may take it up
    )
    asked: bool = False  # a decision was requested
    told: str | None = None
    awaits_answer: bool = True  # its producer lives, and sent no one-way decision
    durable: set[int] = field(default_factory=set)  # parts of its PREPARE; a retry may be in the log too
    decided: bool = False  # durably
    phases: dict[AnyPhase, float] = field(default_factory=dict)  # its present phases, and since when

    @property
    def parts_durable(self) -> int:
        return len(self.durable)


def with_results(ops: Sequence[Op], results: Sequence[Result]) -> Iterator[tuple[Op, Result]]:
    """The operations of an applied entry that have a result, each with its own."""
    return zip((op for op in ops if op.type not in _WITHOUT_RESULT), results, strict=True)


def accepted(op: Op, result: Result) -> list[str]:
    """The transactions that a PREPARE, COMMIT or ROLLBACK took effect on. What it was refused for is in the
    log, too."""
    code, *rest = result
    if code not in (ResultCode.OK, ResultCode.PARTIAL):
        return []
    refused = {i for i, *_ in rest[0]} if code == ResultCode.PARTIAL else ()
    return [tx_id for i, tx_id in enumerate(op.meta.tx_ids) if i not in refused]


class Ledger:
    """All transactions of all apps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.recorder = LiveRecorder(lambda: int(world.now * 1e9))
        self.transactions: dict[tuple[str, str], ClientTx] = {}
        self._database: dict[tuple[str, str], str] = {}
        self._no_row: set[tuple[str, str]] = set()
        #: (from, to, phase): closed stays of transactions in phases.
        self.stays: list[tuple[float, float, AnyPhase]] = []
        self.entered: Callable[[AnyPhase], None] = lambda phase: None  # hears what transactions enter
        self._heard = 0  # entries up to this index were applied by somebody
        #: Gets group, index, time and operations of each entry. It alone handles the apps ``APART``.
        self.listener: Callable[[int, int, int, Sequence[Op]], None] = lambda *entry: None

    # -------------------------------------------------------------- the local databases

    def local(self, app: str, tx: str) -> str | None:
        return self._database.get((app, tx))

    def settle_locally(self, app: str, tx: str, outcome: str) -> str:
        """Insert the outcome unless there is one; returns the outcome in force."""
        known = self._database.get((app, tx))
        if known is None:
            known = self._database[app, tx] = outcome
            self.recorder.ok(self.recorder.invoke("local", app=app, tx=tx, outcome=outcome))
        return known

    def tell_outcome(
        self,
        app: str,
        tx_id: str,
        table: AppTransactions | None,
        branch: int | None = None,
        wire: str | None = None,
    ) -> None:
        """Record what the broker says about a transaction at the end.

        ``table``: that of its app, at the leader of its home group or of group ``branch``. ``wire``: its id
        there, if it differs.
        """
        name = tx_id if wire is None else wire
        mark = None if table is None else table.outcome(name)
        if table is not None and name in table.open:
            outcome = "PREPARE"
        else:
            outcome = "UNKNOWN" if mark is None else STATE_OF[mark].value
        where = {} if branch is None else {"branch": branch}
        self.recorder.ok(self.recorder.invoke("outcome", app=app, tx=tx_id, **where), outcome=outcome)

    def no_row(self, app: str, tx: str) -> str:
        """Interpret a missing row, as a plain querier does, and a producer whose local transaction was rolled
        back. It is right if no row is written later."""
        self._no_row.add((app, tx))
        return "ROLLBACK"

    def tell_the_truth(self) -> None:
        """Record, at the end, the outcome of every transaction without a row: undecided, or rolled back
        because a check interpreted the missing row so.

        Here, unlike in tests/chaos, a producer's own rollback is recorded before it is requested, with or
        without a row; so is the rollback of a check that writes a fence.
        """
        for (app, tx_id), tx in self.transactions.items():
            if tx.has_local and (app, tx_id) not in self._database:
                outcome = "ROLLBACK" if (app, tx_id) in self._no_row else "NONE"
                self.recorder.ok(self.recorder.invoke("local", app=app, tx=tx_id, outcome=outcome))

    # -------------------------------------------------------------- phases

    def enter(self, tx: ClientTx, phase: AnyPhase) -> None:
        tx.phases.setdefault(phase, self.world.elapsed_s)
        self.entered(phase)

    def leave(self, tx: ClientTx, *phases: AnyPhase) -> None:
        for phase in phases:
            since = tx.phases.pop(phase, None)
            if since is not None:
                self.stays.append((since, self.world.elapsed_s, phase))

    def leave_all(self) -> None:
        for tx in self.transactions.values():
            self.leave(tx, *tx.phases)

    def on_entry(self, index: int, command: bytes, results: Sequence[Result]) -> None:
        """A replica applies an entry; the first replica to do so shows that a majority has it on disk."""
        if index <= self._heard:
            return
        self._heard = index
        if not command:
            return
        now_ms, ops = decode_command(command)
        self.listener(0, index, now_ms, ops)
        for op, result in with_results(ops, results):
            if op.type in OF_TRANSACTIONS and op.meta.app in APART:
                continue
            if op.type == OpType.PREPARE:
                self._prepared(op.meta.app, accepted(op, result), op.meta.part)
            elif op.type in (OpType.COMMIT, OpType.ROLLBACK):
                for tx_id in accepted(op, result):
                    self._decided(op.meta.app, tx_id, op.type == OpType.COMMIT)

    def _prepared(self, app: str, ids: list[str], part: int) -> None:
        for tx_id in ids:
            tx = self.transactions[app, tx_id]
            if part in tx.durable:
                continue
            tx.durable.add(part)
            if tx.parts_durable < tx.parts:
                self.leave(tx, Phase.PREPARING)
                self.enter(tx, Phase.PREPARED_IN_PART)
            elif tx.parts_durable == tx.parts:
                self.leave(tx, Phase.PREPARING, Phase.PREPARED_IN_PART)
                if not tx.prepared and not tx.decided:
                    self.enter(tx, Phase.PREPARED)

    def _decided(self, app: str, tx_id: str, commit: bool) -> None:
        tx = self.transactions[app, tx_id]
        if tx.decided:
            return
        tx.decided = True
        waiting = Phase.COMMITTING in tx.phases or Phase.ROLLING_BACK in tx.phases
        self.leave(tx, *tx.phases)
        if waiting and tx.awaits_answer and tx.told is None:
            self.enter(tx, Phase.COMMITTED if commit else Phase.ROLLED_BACK)
