"""The main phase of the demo: producers place orders; one of them is killed, and then the leader."""

from __future__ import annotations

import os
import queue
import signal
import time
from collections.abc import Callable, Sequence

from escrowmq.actors.admin.admin import Admin
from escrowmq.cluster.demo.events import Finished
from escrowmq.cluster.demo.fleet import Fleet
from escrowmq.cluster.demo.mishaps import MishapPlan
from escrowmq.cluster.demo.options import AGREE_DEADLINE_S, APP, RESOLVE_DEADLINE_S, STALL_DEADLINE_S
from escrowmq.cluster.demo.tally import DemoFailed, Tally

#: Interval for listing open transactions while they are being resolved.
POLL_S = 0.25
#: Open transactions are listed up to this number: the progress bar needs no more.
OPEN_SHOWN_MAX = 100_000
#: Number of the process to kill; any would do.
VICTIM = 1

Note = Callable[[str], None]


def produce(
    fleet: Fleet,
    admin: Admin,
    plan: MishapPlan,
    shares: Sequence[Sequence[int]],
    tally: Tally,
    moved: Callable[[int], None],
    note: Note,
) -> None:
    """Place all orders and perform the two kills. ``moved(orders done)`` is for a progress bar.

    Raises DemoFailed when a producer fails or nothing happens for STALL_DEADLINE_S.
    """
    total = sum(map(len, shares))
    for number, share in enumerate(shares):
        fleet.start(number, share)
    busy = set(range(len(shares)))
    victim_killed = False
    while busy:
        try:
            number, event = fleet.events.get(timeout=STALL_DEADLINE_S)
        except queue.Empty:
            raise DemoFailed(f"no order was finished for {STALL_DEADLINE_S:g} s") from None
        tally.add(event)
        if isinstance(event, Finished):
            busy.discard(number)
        moved(tally.through)
        if not victim_killed and tally.through >= plan.producer_killed_at * total:
            victim_killed = True
            left = fleet.kill(VICTIM)
            tally.producer_killed_s = time.monotonic()
            busy.add(VICTIM)
            fleet.start(VICTIM, left)
            note(
                f"producer {VICTIM} killed with SIGKILL; another process takes over its {len(left):,} orders"
            )
        if tally.leader_killed_s is None and tally.through >= plan.leader_killed_at * total:
            replica = kill_leader(admin)
            tally.leader_killed_s = time.monotonic()
            note(f"leader broker (replica {replica}) killed with SIGKILL")


def kill_leader(admin: Admin) -> int:
    """Kill the leader of group 0 with SIGKILL; returns its replica number."""
    deadline = time.monotonic() + STALL_DEADLINE_S
    while time.monotonic() < deadline:
        group = admin.status().groups[0]
        leading = [r for r in group.replicas if r.reachable and r.replica == group.leader]
        if leading:
            os.kill(int(leading[0].details["pid"]), signal.SIGKILL)
            return leading[0].replica
        time.sleep(POLL_S)
    raise DemoFailed("the broker group has no leader to kill")


def wait_until_resolved(fleet: Fleet, admin: Admin, tally: Tally, shown: Callable[[int], None]) -> float:
    """Wait until no transaction is open; returns the seconds it took. ``shown(open ones)`` is for a bar."""
    started = time.monotonic()
    while True:
        while not fleet.events.empty():
            tally.add(fleet.events.get()[1])
        open_ones = len(admin.list_transactions(app=APP, limit=OPEN_SHOWN_MAX))
        shown(open_ones)
        took = time.monotonic() - started
        if open_ones == 0:
            return took
        if took > RESOLVE_DEADLINE_S:
            raise DemoFailed(
                f"{open_ones} transactions are still open after {RESOLVE_DEADLINE_S:g} s of checks"
            )
        time.sleep(POLL_S)


def wait_until_replicas_agree(admin: Admin) -> None:
    """Wait until all replicas, including the killed one, have applied the same entries. Raises DemoFailed."""
    deadline = time.monotonic() + AGREE_DEADLINE_S
    while True:
        replicas = [replica for group in admin.status().groups for replica in group.replicas]
        if all(r.reachable for r in replicas) and len({r.applied_index for r in replicas}) == 1:
            return
        if time.monotonic() > deadline:
            seen = ", ".join(f"{r.replica}: {r.applied_index if r.reachable else 'gone'}" for r in replicas)
            raise DemoFailed(f"the replicas do not agree after {AGREE_DEADLINE_S:g} s (applied: {seen})")
        time.sleep(POLL_S)
