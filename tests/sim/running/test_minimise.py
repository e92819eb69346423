"""A broken seed shrinks to a few faults, and the printed command shows the same violation again."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

from tests.sim.faults.plan import (
    ADDED,
    ADDED_NUMBERS,
    CHANGE,
    CHANGE_NUMBERS,
    GHOST,
    GHOST_NUMBERS,
    draw_faults,
)
from tests.sim.running.minimise import Minimised, ddmin, kind_of, minimise
from tests.sim.running.runner import Options
from tests.sim.running.schedules import run_seed

DROPPED = "commit-cap"
#: This seed breaks early, so that its minimisation takes short runs: a seed that breaks at the end of a long
#: chaos needs most of its faults, and each of up to 300 runs takes a second or more.
OPTIONS, FIRST_SEED, LIMIT_S = Options(dropped=[DROPPED], chaos_s=4.0), 6, 60


def broken_and_small() -> tuple[int, str, Minimised]:
    keywords = OPTIONS.keywords("raw")
    for seed in range(FIRST_SEED, FIRST_SEED + 40):
        _, broken = run_seed(seed, **keywords)
        if broken is not None:
            small = minimise(seed, keywords, limit_s=LIMIT_S)
            assert small is not None
            return seed, broken, small
    raise AssertionError(f"40 schedules without {DROPPED} broke nothing")


def test_a_schedule_without_a_guard_shrinks_and_replays() -> None:
    seed, broken, small = broken_and_small()
    assert 1 <= len(small.schedule.faults) <= 4 < small.faults_before
    assert kind_of(small.broken) == kind_of(broken)
    text = small.text(OPTIONS.command(seed, "raw"))
    command = text.splitlines()[-1].split()
    assert command[:3] == ["python", "-m", "tests.sim"]
    again = subprocess.run(
        [sys.executable, *command[1:], "--jobs", "1", "--no-minimise"],
        env={"PYTHONPATH": ":".join(sys.path), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 1
    assert small.broken in re.sub(r"\s+", " ", again.stdout)
    # Every fault of the small schedule is printed with its time, and the violation comes last.
    assert text.count(" s  ") == len(small.log) + 1 and text.splitlines()[-2].endswith(small.broken)


def test_a_sound_seed_has_nothing_to_minimise() -> None:
    assert minimise(0, Options(chaos_s=2.0).keywords("raw")) is None


def test_the_same_plan_with_less_chaos_is_its_beginning() -> None:
    long = draw_faults(3, 10.0)
    assert draw_faults(3, 4.0) == [fault for fault in long if fault.at_s < 4.0]
    usual = [fault.number for fault in long if fault.kind not in (*ADDED, GHOST)]
    assert usual == list(range(len(usual))) and len(usual) > 10


def test_what_is_drawn_beside_the_others_has_numbers_of_its_own() -> None:
    for groups in (1, 3):
        plans = [draw_faults(seed, 10.0, groups) for seed in range(40)]
        for plan in plans:
            numbers = [fault.number for fault in plan]
            assert len(set(numbers)) == len(numbers)
            ghosts = [fault for fault in plan if GHOST_NUMBERS <= fault.number < ADDED_NUMBERS]
            assert ghosts == [fault for fault in plan if fault.kind == GHOST]
            changes = [fault for fault in plan if fault.number >= CHANGE_NUMBERS]
            assert changes == [fault for fault in plan if fault.kind == CHANGE]
            added = [fault for fault in plan if ADDED_NUMBERS <= fault.number < CHANGE_NUMBERS]
            assert all(fault.kind in ADDED for fault in added)
        for kind in (*ADDED, GHOST, *((CHANGE,) if groups > 1 else ())):
            assert any(fault.kind == kind for plan in plans for fault in plan)


def test_ddmin_finds_what_is_needed_together() -> None:
    calls = 0

    def fails(items: Sequence[int]) -> bool:
        nonlocal calls
        calls += 1
        return {3, 17} <= set(items)

    assert sorted(ddmin(range(24), fails)) == [3, 17]
    assert calls < 60
    assert ddmin(range(24), lambda items: True) == []


def test_kinds_of_violations_do_not_depend_on_names_and_numbers() -> None:
    assert kind_of("the commit index of r1 fell from 17 to 3") == kind_of(
        "the commit index of r0 fell from 9 to 8"
    )
    assert kind_of("entry 5 was acknowledged while only 1 replicas hold it durably") != kind_of(
        "r0 and r1 both lead term 3"
    )
    assert kind_of("AssertionError: a proposal was answered twice") != kind_of("AssertionError: other")
