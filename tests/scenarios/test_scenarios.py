"""Each scenario says what its file says; and with a planted fault it says something else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.controls.catalogue import PLANTED
from tests.controls.guards import GUARDS
from tests.controls.planting import Install
from tests.controls.told_faults import (
    changes_before_its_own_term,
    counts_on_who_is_silent,
    ignores_later_terms,
)
from tests.scenarios import runner
from tests.scenarios.commands import Scene
from tests.scenarios.runner import NAMES, REWRITE, difference


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_says_what_its_file_says(name: str, pytestconfig: pytest.Config) -> None:
    found = difference(name, rewrite=pytestconfig.getoption(REWRITE, default=False))
    assert not found, (
        f"{found}\n\nIf this is what it shall say from now on: pytest tests/scenarios {REWRITE} "
        f"writes it into {name}.txt"
    )
    assert not re.search(
        "^    (broken|there is no such)", (runner.FOLDER / f"{name}.txt").read_text(), re.MULTILINE
    )


#: A fault, the scenario that it must fail, and what is said there then.
FAULTS: list[tuple[str | Install, str, str]] = [
    ("vote-for-a-shorter-log", "older_log_loses", "r2 leads in term 2"),
    ("votes-counted-per-delivery", "split_vote", "r0: leader +term 1"),
    ("vote-forgotten-at-restart", "vote_survives_power_cut", "r1: follower +term 9 +voted r2"),
    ("vote-not-persisted", "vote_survives_power_cut", "r1: follower +term 9 +voted r2"),
    ("acks-before-fsync", "slow_disks", "apple: applied"),
    ("leader-counts-itself-early", "slow_disks", "pear: applied"),
    ("two-changes-at-once", "unsafe_changes", "remove r1: applied"),
    ("learner-promoted-early", "unsafe_changes", "voters r0 r1 r3"),
    ("member-id-used-again", "replacing_a_member", "add as learner r1: applied"),
    ("members-taken-at-apply", "change_under_way", "r0 r1 r2: voters r0 r1 r2"),
    ("tail-ignored-at-start", "change_under_way", "r0: voters r0 r1 r2"),
    (counts_on_who_is_silent, "silent_voter", "r0: follower"),
    (changes_before_its_own_term, "two_majorities", "promised: applied"),
    ("wiped-disk-counts-at-once", "empty_directory", "r2: follower"),
    ("learner-votes-at-once", "lost_disk", "r1 leads in term 2"),
    (ignores_later_terms, "lost_disk", "lost: applied"),
    ("learner-for-ever", "lost_disk", "r2: rejoining"),
    ("scrubbing-passes-over-damage", "damaged_segment", r"r1: follower.*committed 23$"),
    ("damage-is-left-as-it-is", "damaged_segment", r"damaged \[5\]"),
    ("campaigns-with-damage", "lost_everywhere", "r2 leads in term 2"),
    (GUARDS["sound-acks"], "damaged_acks", "apple: applied"),
]


@pytest.mark.parametrize(
    ("fault", "name", "says"),
    FAULTS,
    ids=lambda it: it if isinstance(it, str) else getattr(it, "__name__", ""),
)
def test_a_fault_is_heard(
    fault: str | Install, name: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (PLANTED[fault].install if isinstance(fault, str) else fault)(monkeypatch)
    said = [line for line in difference(name).splitlines() if line.startswith("+")]
    assert any(re.search(says, line) for line in said), "\n".join(said) or "it says what it always says"


def test_what_is_expected_is_rewritten_and_remarks_stay(tmp_path: Path) -> None:
    file = tmp_path / "one.txt"
    file.write_text("# Nobody else.\n1 replica\nelect r0\n    r0 loses\n\nshow values\n")
    assert "-    r0 loses\n+    r0 leads in term 1" in difference("one", folder=tmp_path)
    assert difference("one", rewrite=True, folder=tmp_path) == "" == difference("one", folder=tmp_path)
    assert (
        file.read_text()
        == "# Nobody else.\n1 replica\nelect r0\n    r0 leads in term 1\n\nshow values\n    r0:\n"
    )


def test_a_word_that_is_not_known_is_said() -> None:
    assert Scene().obey("eleect r0") == ["there is no such command: eleect r0"]
    assert Scene().obey("stop r0") == ["broken, KeyError: 'r0'"]
