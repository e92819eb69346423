"""Many small things at once: hundreds of topics of one app, and thousands of apps that are used once.

Spark does the latter (each batch write is an app), a multi-tenant service the former. So entries for apps and
topics are added to and removed from all tables of a replica constantly. Some transactions are left open, as
by a process that died; checks settle them if a producer answers, otherwise an operator at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.actors.admin.topic_creation import topic_settings
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from tests.history.events import Sent, body
from tests.sim.clients.desk import Desk
from tests.sim.clients.ledger import ClientTx, Ledger
from tests.sim.clients.producers import prepare_request
from tests.sim.clients.topics import Topics
from tests.sim.environment.world import Violation
from tests.sim.running.coverage import Phase

#: The app that has a transaction in every topic.
APP = "many"
TOPICS = 300
SHARE = 0.04  # share of schedules with a crowd, which cost several times as much as others
#: Approximate time between rounds, and the number of transactions that begin in one.
PAUSE_S, COUNTS = 0.2, (10, 30, 60)
AT_ONCE = 15  # rounds in progress at a time
CREATED_AT_ONCE = 50
LEFT_OPEN = 0.05
LOCAL_S = 0.3
NAMES = [f"m{n}" for n in range(TOPICS)]
#: Registers one transaction of one part: app, id, what it sends.
Add = Callable[[str, str, list[Sent]], ClientTx]


def topics(desks: Sequence[Desk]) -> list[Topics]:
    """Create the topics of the crowds of all groups."""
    settings = topic_settings(1, transaction_timeout_ms=500)
    batches = [NAMES[at : at + CREATED_AT_ONCE] for at in range(0, TOPICS, CREATED_AT_ONCE)]
    created = [Topics(desks, dict.fromkeys(names, settings)) for names in batches]
    for batch in created:
        batch.are_there()  # they are soon
    return created


class Crowd:
    """The crowd of one group.

    ``topics``: see there; ``names``: of those whose single partition is in this group. ``forgets``: ids are
    forgotten while requests are retried, so the group may not know one.
    """

    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        add: Add,
        number: Callable[[], int],
        topics: Sequence[Topics],
        names: Sequence[str] = NAMES,
        *,
        gid: int = -1,
        forgets: bool = False,
    ) -> None:
        self.desk, self.ledger, self.forgets = desk, ledger, forgets
        self.rng = desk.world.stream(f"crowd{desk.cluster.prefix}")
        self.partitions = [(topic, 0) for topic in names]
        self.busy = 0
        self.heard_ms = -1
        self._add, self._number, self._gid, self._topics = add, number, gid, topics
        self._next_s = 0.0

    def act(self) -> None:
        """Begin some transactions, if it is time and not too many are in progress."""
        now_s = self.desk.world.elapsed_s
        if now_s < self._next_s or not all(some.are_there() for some in self._topics):
            return
        if self.busy >= AT_ONCE or self.desk.cluster.calm:
            return
        self._next_s = now_s + self.rng.expovariate(1 / PAUSE_S)
        count = min(self.rng.choice(COUNTS), len(self.partitions))
        once = self.rng.random() < 0.5
        begun: list[tuple[ClientTx, bytes]] = []
        for topic, _ in self.rng.sample(self.partitions, count):
            number = self._number()
            tx_id = f"c{number}"
            sent = [Sent(f"{tx_id}.0", topic, 0, group=self._gid)]
            tx = self._add(f"once{number}" if once else APP, tx_id, sent)
            tx.fenced = True
            begun.append((tx, encode_row(None, body(sent[0].id, self.rng.choice((1, 30, 60))), None, tx_id)))
        _Round(self, begun)


class _Round:
    """Some transactions, prepared with one request and decided with another."""

    def __init__(self, crowd: Crowd, begun: Sequence[tuple[ClientTx, bytes]]) -> None:
        self._crowd, self._recorder = crowd, crowd.ledger.recorder
        self._begun = [tx for tx, _ in begun]
        self._ops = [
            self._recorder.invoke("prepare", app=tx.app, tx=tx.tx, messages=tx.sent) for tx in self._begun
        ]
        extra = PrepareExtra(heard_ms=crowd.heard_ms)
        frames = []
        for tx, row in begun:
            tp = tx.sent[0].topic, 0
            frames.append(prepare_request(tx.app, tp[0], [tx], [[(0, tp, row)]], 0, extra))
        crowd.busy += 1
        crowd.desk.call(b"".join(frames), self._prepared, lambda: True, hears=self._hears)

    def _hears(self, time_ms: int) -> None:
        self._crowd.heard_ms = max(self._crowd.heard_ms, time_ms)

    def _prepared(self, results: list[Any]) -> None:
        crowd, left = self._crowd, list[ClientTx]()
        for tx, op, result in zip(self._begun, self._ops, results, strict=True):
            problem = result[1][0] if result[0] == ResultCode.PARTIAL else [0, result[0], None]
            if problem[1] == ResultCode.OK:
                self._recorder.ok(op)
                tx.prepared = True
                crowd.ledger.leave(tx, Phase.PREPARED, Phase.PREPARING)
            elif problem[1] == ResultCode.DUPLICATE:  # it was decided, and its request arrived twice
                self._recorder.unknown(op, "it was decided before")
                continue
            elif problem[1] == ResultCode.STALE:
                self._recorder.unknown(op, "stale")
            else:
                raise Violation(f"a PREPARE was answered {result}", "unexpected-answer")
            if crowd.rng.random() >= LEFT_OPEN or not tx.prepared:
                left.append(tx)
            elif not tx.decided:
                crowd.ledger.enter(tx, Phase.ORPHANED)
        crowd.desk.later(LOCAL_S * crowd.rng.random(), self._run_locally, left)

    def _run_locally(self, left: Sequence[ClientTx]) -> None:
        crowd = self._crowd
        asked: list[tuple[ClientTx, str, int]] = []
        for tx in left:
            wanted = "COMMITTED" if tx.prepared and crowd.rng.random() < 0.75 else "ROLLBACK"
            outcome = crowd.ledger.settle_locally(tx.app, tx.tx, wanted)
            op = self._recorder.invoke("decide", app=tx.app, tx=tx.tx, outcome=outcome, by="producer")
            tx.asked = True
            if not tx.decided:
                crowd.ledger.enter(tx, _PHASES[outcome])
            asked.append((tx, outcome, op))
        self._ask(asked)

    def _ask(self, asked: Sequence[tuple[ClientTx, str, int]]) -> None:
        if not asked:
            self._crowd.busy -= 1
            return
        frames = [
            (ops.commit if outcome == "COMMITTED" else ops.rollback)(tx.app, [tx.tx], ops.BY_PRODUCER)
            for tx, outcome, _ in asked
        ]
        self._crowd.desk.call(b"".join(frames), lambda results: self._decided(asked, results), lambda: True)

    def _decided(self, asked: Sequence[tuple[ClientTx, str, int]], results: list[Any]) -> None:
        again = []
        for (tx, outcome, op), result in zip(asked, results, strict=True):
            code, info = result[1][0][1:] if result[0] == ResultCode.PARTIAL else (result[0], None)
            if code == ResultCode.RETRY:
                again.append((tx, outcome, op))
                continue
            self._crowd.ledger.leave(tx, *_PHASES.values(), Phase.COMMITTED, Phase.ROLLED_BACK)
            if code in (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.TX_CONFLICT):
                tx.told = info if code == ResultCode.TX_CONFLICT else outcome
                self._recorder.ok(op, outcome=tx.told)
            elif code != ResultCode.UNKNOWN_TX or (tx.prepared and not self._crowd.forgets):
                raise Violation(f"{tx.tx} was prepared, and its decision answered {result}", "prepared-lost")
            elif tx.prepared:
                self._recorder.unknown(op, "forgotten")
            else:
                self._recorder.fail(op, "the broker has never heard of it")
        if again:
            self._crowd.desk.later(0.03, self._ask, again)
        else:
            self._crowd.busy -= 1


_PHASES = {"COMMITTED": Phase.COMMITTING, "ROLLBACK": Phase.ROLLING_BACK}
