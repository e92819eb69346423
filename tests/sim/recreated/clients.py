"""Clients that send plain messages and transactions to the topic; a transaction may be decided when another
topic has the same name. They never die and decide everything, so if a transaction stays open, it is the
broker's fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.model import ResultCode
from tests.history.events import body
from tests.sim.clients.ledger import ClientTx
from tests.sim.clients.producers import prepare_request
from tests.sim.environment.world import Violation
from tests.sim.recreated.model import APP, TOPIC

if TYPE_CHECKING:
    from tests.sim.recreated.topic import RecreatedTopic

#: Share of requests that are copied, and how much later the copy arrives.
COPIED, COPY_LATER_S = 0.2, (0.3, 1.0, 2.5)
PAUSE_S = 0.12  # approximate time between two sends or transactions
AT_ONCE = 25
PLAIN = 0.3
LOCAL_S = (0.0, 0.1, 0.6, 2.0)
COMMITTED = 0.8


class Clients:
    """All clients of the topic."""

    def __init__(self, topic: RecreatedTopic) -> None:
        self._topic, self._rng = topic, topic.rng
        self.busy = 0  # transactions that are prepared and not decided
        self.pause_s = PAUSE_S
        self._count = 0
        self._next_s = 0.0
        self._heard_ms = [-1 for _ in topic.desks]

    def act(self) -> None:
        """Send something, if it is time."""
        topic, rng = self._topic, self._rng
        now_s = topic.desks[0].world.elapsed_s
        if topic.info is None or now_s < self._next_s or self.busy >= AT_ONCE:
            return
        self._next_s = now_s + rng.expovariate(1 / self.pause_s)
        self._count += 1
        partition = rng.randrange(topic.info.partitions)
        gid = topic.group_of(partition)
        if rng.random() < PLAIN:
            self._send(gid, partition)
            return
        here = [n for n in range(topic.info.partitions) if topic.group_of(n) == gid]
        self._prepare(gid, rng.sample(here, min(len(here), rng.choice((1, 1, 2)))))

    def _send(self, gid: int, partition: int) -> None:
        name = f"r{self._count}"
        sent = [(partition, f"{name}.{n}") for n in range(self._rng.choice((1, 2)))]
        self._topic.models[gid].sent[name] = sent
        rows = [encode_row(None, body(id, 40), None, None) for _, id in sent]
        # Without sequence numbers: they belong to the producer, and this tests the topic.
        request = ops.message(TOPIC, partition, name, 0, -1, rows, -1, self._topic.topic_id)
        self._topic.desks[gid].call(request, lambda results: None, lambda: True)
        self._copy(gid, request)

    def _copy(self, gid: int, request: bytes) -> None:
        """Perhaps let a copy arrive much later, when another topic has the name."""
        if self._rng.random() < COPIED:
            pause_s = self._rng.choice(COPY_LATER_S) * (0.5 + self._rng.random())
            self._topic.later(pause_s, self._arrives, gid, request)

    def _arrives(self, gid: int, request: bytes) -> None:
        self._topic.done["copied"] += 1
        self._topic.desks[gid].call(request, lambda results: None, lambda: True, once=True)

    def _prepare(self, gid: int, partitions: list[int]) -> None:
        tx, rng = ClientTx(APP, f"r{self._count}", [], 1, APP), self._rng
        sent = [(n, f"{tx.tx}.{n}.{k}") for n in partitions for k in range(rng.choice((1, 1, 3)))]
        self._topic.models[gid].sent[tx.tx] = sent
        rows = [
            (0, (TOPIC, n), encode_row(None, body(id, rng.choice((1, 60, 300))), None, tx.tx))
            for n, id in sent
        ]
        extra = PrepareExtra(heard_ms=self._heard_ms[gid])
        request = prepare_request(APP, TOPIC, [tx], [rows], 0, extra, self._topic.topic_id)
        self.busy += 1

        def hears(time_ms: int) -> None:
            self._heard_ms[gid] = max(self._heard_ms[gid], time_ms)

        def prepared(results: list[Any]) -> None:
            code = results[0][0] if results[0][0] != ResultCode.PARTIAL else results[0][1][0][1]
            tx.prepared = code == ResultCode.OK
            if code not in (
                ResultCode.OK,
                ResultCode.UNKNOWN_TOPIC,
                ResultCode.BAD_PARTITION,
                ResultCode.STALE,
                ResultCode.OTHER_TOPIC,
            ):
                raise Violation(f"a PREPARE was answered {results[0]}", "unexpected-answer")
            commit = tx.prepared and rng.random() < COMMITTED
            pause_s = rng.choice(LOCAL_S) * rng.random() if tx.prepared else 0.0
            self._topic.later(pause_s, self._decide, gid, tx, commit)

        self._topic.desks[gid].call(request, prepared, lambda: True, hears=hears)
        self._copy(gid, request)

    def _decide(self, gid: int, tx: ClientTx, commit: bool) -> None:
        """Decide, even if the PREPARE was refused: an earlier copy of it may have opened the transaction."""
        request = (ops.commit if commit else ops.rollback)(APP, [tx.tx], ops.BY_PRODUCER)

        def decided(results: list[Any]) -> None:
            code = ResultCode.OK if results[0][0] == ResultCode.OK else results[0][1][0][1]
            if code == ResultCode.RETRY:
                self._topic.later(0.03, self._decide, gid, tx, commit)
                return
            # Ids may be forgotten before the copy of a decision arrives.
            if code not in (ResultCode.OK, ResultCode.DUPLICATE, ResultCode.UNKNOWN_TX):
                raise Violation(f"the decision of {tx.tx} was answered {results[0]}", "unexpected-answer")
            self.busy -= 1
            self._topic.done["committed" if commit else "rolled back"] += 1

        self._topic.desks[gid].call(request, decided, lambda: True)
