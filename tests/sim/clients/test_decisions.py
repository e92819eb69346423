"""What a simulated client takes for certain about a decision."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.replication.model import ResultCode
from tests.sim.clients.decisions import Decision
from tests.sim.clients.desk import Then
from tests.sim.clients.ledger import ClientTx, Ledger
from tests.sim.environment.world import World


class _Asked:
    """A request that was sent so many times before its answer came."""

    def __init__(self, attempts: int) -> None:
        self.repeated = attempts > 1


class _Desk:
    """Gives one answer to a request that was sent so many times."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self.then: Then = lambda results: None

    def call(self, request: bytes, then: Then, *others: Any) -> _Asked:
        self.then = then
        return _Asked(self._attempts)


@pytest.mark.parametrize(("attempts", "phase"), [(1, "fail"), (2, "unknown")])
def test_a_refusal_says_nothing_of_an_attempt_before(attempts: int, phase: str) -> None:
    """The first attempt may be in the log, and is then why the second one is refused."""
    ledger, desk = Ledger(World(1)), _Desk(attempts)
    tx = ClientTx("shop", "x1", [], 1, "p1", prepared=True)
    ledger.recorder.invoke("prepare", app="shop", tx="x1", messages=[])
    Decision(desk, ledger, [tx], "ROLLBACK", "check", lambda: True, index=7)  # type: ignore[arg-type]
    desk.then([[int(ResultCode.PARTIAL), [[0, int(ResultCode.RETRY)]]]])
    assert ledger.recorder.events[-1].phase == phase
