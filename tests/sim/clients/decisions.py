"""A decision, from its request by a producer, a check or an operator until it is answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from escrowmq.replication.format import ops
from escrowmq.replication.model import ResultCode
from tests.sim.clients.desk import Desk
from tests.sim.clients.ledger import ClientTx, Ledger
from tests.sim.environment.world import Violation
from tests.sim.running.coverage import Phase

#: Who decided: name in the history -> name that the broker gets.
WIRE_NAMES = {"producer": "producer", "check": "feedback", "operator": "operator:simulated"}
_BUILD = {"COMMITTED": ops.commit, "ROLLBACK": ops.rollback}
_PHASE = {"COMMITTED": Phase.COMMITTING, "ROLLBACK": Phase.ROLLING_BACK}


class Decision:
    """One outcome for some transactions of one app."""

    def __init__(
        self,
        desk: Desk,
        ledger: Ledger,
        batch: Sequence[ClientTx],
        outcome: str,
        by: str,
        alive: Callable[[], bool],
        *,
        once: bool = False,
        then: Callable[[], None] = lambda: None,
        index: int = 0,
    ) -> None:
        """``once``: no client waits for an answer; ``then``: called after the last answer; ``index``: roll
        back only this PREPARE."""
        self._desk, self._ledger, self._outcome = desk, ledger, outcome
        self._index = index if outcome == "ROLLBACK" else 0
        self._alive, self._once, self._then, self._by = alive, once, then, WIRE_NAMES[by]
        recorder, app = ledger.recorder, batch[0].app
        self._open = [
            (tx, recorder.invoke("decide", app=app, tx=tx.tx, outcome=outcome, by=by)) for tx in batch
        ]
        for tx in batch:
            tx.asked = True
            if once:
                tx.awaits_answer = False
            if not tx.decided:
                ledger.enter(tx, _PHASE[outcome])
        self._ask()

    def _ask(self) -> None:
        ids = [tx.tx for tx, _ in self._open]
        app = self._open[0][0].app
        if self._index:
            request = ops.rollback(app, ids, self._by, newest_index=[self._index] * len(ids))
        else:
            request = _BUILD[self._outcome](app, ids, self._by)
        self._call = self._desk.call(request, self._answered, self._alive, self._once)
        if self._once:
            for _, op in self._open:
                self._ledger.recorder.unknown(op, "sent one-way")

    def _answered(self, results: list[Any]) -> None:
        (result,) = results
        if result[0] not in (ResultCode.OK, ResultCode.PARTIAL):
            raise Violation(f"a decision was answered {result}", "unexpected-answer")
        problems = {p[0]: p for p in result[1]} if result[0] == ResultCode.PARTIAL else {}
        asked, self._open = self._open, []
        for number, (tx, op) in enumerate(asked):
            problem = problems.get(number)
            if problem is not None and problem[1] == ResultCode.RETRY:
                if self._index:  # it was prepared again, and the check is asked again, too
                    recorder = self._ledger.recorder
                    ended = recorder.unknown if self._call.repeated else recorder.fail
                    ended(op, "it was prepared again, or is being decided")
                    self._ledger.leave(tx, _PHASE[self._outcome])
                else:
                    self._open.append((tx, op))
            else:
                self._told(tx, op, problem)
        if self._open:
            self._desk.later(0.03, self._ask)
        else:
            self._then()

    def _told(self, tx: ClientTx, op: int, problem: list[Any] | None) -> None:
        recorder = self._ledger.recorder
        if problem is None or problem[1] == ResultCode.DUPLICATE:
            told = self._outcome
        elif problem[1] == ResultCode.TX_CONFLICT:
            told = problem[2]
        elif problem[1] == ResultCode.UNKNOWN_TX and not tx.prepared:
            recorder.fail(op, "the broker has never heard of it")
            self._ledger.leave(tx, _PHASE[self._outcome])
            return
        else:
            raise Violation(f"{tx.tx} was prepared, and its decision answered {problem}", "prepared-lost")
        tx.told = told
        self._ledger.leave(tx, *_PHASE.values(), Phase.COMMITTED, Phase.ROLLED_BACK)
        recorder.ok(op, outcome=told)
