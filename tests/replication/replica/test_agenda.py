"""Each duty gets its turn when it is due, and none is forgotten: to forget one is planted here for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.host.running_replica import TIMER_S
from escrowmq.replication.replica import admission, compaction, replica
from escrowmq.replication.replica.agenda import AT_ONCE, NEVER, Agenda, Duty
from escrowmq.replication.replica.replica import Limits
from tests.support.broker_group import BrokerGroup
from tests.support.lease_dispatcher import LEASE_MS, OTHER, Desk
from tests.support.requests import message, prepare
from tests.support.waiting import wait_until

LIMITS = Limits(
    entries_in_flight=1, slice_visits=1, retention_interval_ms=200, retention_pause_ms=0, carry_ahead_ms=100
)
STEP_MS = 10


def test_only_what_is_due_is_called_and_it_says_when_it_is_due_next() -> None:
    called: list[str] = []

    def noted(name: str, pause_s: float) -> Duty:
        def run(now: float) -> float:
            called.append(name)
            return now + pause_s

        return Duty(name, run)

    agenda = Agenda()
    often, seldom = agenda.add(noted("often", 1.0)), agenda.add(noted("seldom", 10.0))
    never = agenda.add(noted("never", NEVER))
    agenda.run(0.0)
    assert called == ["often", "seldom", "never"], "at first all, in their order"
    assert (often.due, seldom.due, never.due, agenda.next) == (1.0, 10.0, NEVER, 1.0)
    for now in (0.5, 0.9, 1.0, 1.5):
        agenda.run(now)
    assert called[3:] == ["often"] and agenda.next == 2.0
    never.due = AT_ONCE
    agenda.run(1.6)
    assert called[4:] == ["never"]


def test_what_makes_a_duty_due_while_it_runs_is_not_lost() -> None:
    agenda = Agenda()

    def run(now: float) -> float:
        if now < 2.0:
            duty.due = AT_ONCE
        return NEVER

    duty = agenda.add(Duty("stirred", run))
    agenda.run(1.0)
    assert duty.due == AT_ONCE and agenda.next == NEVER, "with the next tick, whenever that comes"
    agenda.run(2.0)
    assert duty.due == NEVER


# ------------------------------------------------------------------ no duty is forgotten


class Ticking(Desk):
    """Has the timer among its duties, as a replica of a broker, and knows nothing but ticks."""

    def __init__(self, path: Path, segment_bytes: int = 4_000) -> None:
        super().__init__(path, segment_bytes=segment_bytes, limits=LIMITS, block_entries=4)
        self.replica.agenda.duties.insert(0, Duty("timer", self._timer))

    def _timer(self, now: float) -> float:
        self.replica.on_timer(self.now_ms)
        return now + TIMER_S

    def tick(self, ms: int) -> None:
        for _ in range(0, ms, STEP_MS):
            self.now_ms += STEP_MS
            self.replica.pump(self.now_ms)

    def schedule(self, *times: int) -> None:
        rows = [encode_row(None, b"later", None, None) for _ in times]
        (result,) = self.submit(timer_ops.scheduled("t", 0, "p", 0, -1, times, rows, 7, 0, -1, 0))
        assert result[0] == 0


def a_request_is_written(desk: Ticking) -> None:
    answers = desk.send(prepare(["x"]))
    assert [answer[:2] for answer in answers] == [("ok", [[0]])]


def requests_go_on_when_an_entry_ends(desk: Ticking) -> None:
    desk.node.held = []
    desk.send(prepare(["a"]))
    late = desk.send(prepare(["b"]))
    assert len(desk.node.held) == 1 and late == [], "so many entries may be in flight"
    desk.node.release()
    desk.tick(STEP_MS)
    assert [answer[:2] for answer in late] == [("ok", [[0]])]


def delayed_messages_are_released(desk: Ticking) -> None:
    desk.schedule(desk.now_ms + 50, desk.now_ms + 250)
    desk.tick(100)
    assert desk.texts() == ["later"]
    desk.tick(200)
    assert desk.texts() == ["later"] * 2


def leases_expire(desk: Ticking) -> None:
    desk.put("a")
    assert desk.values() == ["a"]
    desk.tick(LEASE_MS + 200)
    assert desk.values(OTHER) == ["a"]


def old_messages_go(desk: Ticking) -> None:
    for _ in range(30):
        desk.submit(message("t", 0, [b"x" * 900]))
    desk.submit(ops.alter_topic("t", {"retention_ms": 1}, number=0))
    desk.tick(3_000)
    assert desk.state.topics.topics["t"].partitions[0].index.start == 30


def checkpoints_are_taken_slice_by_slice(desk: Ticking) -> None:
    for _ in range(12):
        desk.submit(message("t", 0, [b"x" * 900]))
    desk.tick(3_000)
    assert desk.checkpoints.indexes and not desk.checkpoints.busy


def what_waits_long_is_carried(desk: Ticking) -> None:
    desk.schedule(desk.now_ms + 1_000_000)
    desk.tick(100)
    desk.replica.admission.carrying.begin(desk.journal.last_index + 1)
    desk.tick(100)
    assert desk.replica.admission.carrying.carried == 1


Scene = Callable[[Ticking], None]
#: A scene, and what is forgotten: a duty that does not say when it is due next, or what makes it due in that
#: module.
FORGOTTEN: list[tuple[Scene, str]] = [
    (a_request_is_written, "admission"),
    (requests_go_on_when_an_entry_ends, "replica"),
    (delayed_messages_are_released, "entries"),
    (leases_expire, "timer"),
    (old_messages_go, "timer"),
    (checkpoints_are_taken_slice_by_slice, "checkpoint"),
    (what_waits_long_is_carried, "compaction"),
]
MODULES = {"admission": admission, "replica": replica, "compaction": compaction}


def forget(desk: Ticking, what: str, patch: pytest.MonkeyPatch) -> None:
    if what in MODULES:
        patch.setattr(MODULES[what], "AT_ONCE", NEVER)
        return
    (duty,) = (duty for duty in desk.replica.agenda.duties if duty.name == what)
    run = duty.run

    def forgetful(now: float) -> float:
        run(now)
        return NEVER

    duty.run = forgetful


@pytest.mark.parametrize(("scene", "what"), FORGOTTEN)
@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "planted"])
def test_a_forgotten_duty_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: Scene, what: str, planted: bool
) -> None:
    desk = Ticking(tmp_path)
    desk.begin(partitions=4)
    desk.tick(500)
    if not planted:
        scene(desk)
    else:
        forget(desk, what, monkeypatch)
        with pytest.raises((AssertionError, IndexError)):
            scene(desk)
    desk.close()


def test_a_running_replica_s_timer_goes_on(trio: BrokerGroup) -> None:
    trio.topic(transaction_timeout_ms=300)
    trio.submit(prepare(["a"]))
    checks = trio.leader().parts.due_checks
    wait_until(lambda: bool(checks.due_pairs(0, 0, 0, 1, 0.1)[1].pairs), what="it is due")
