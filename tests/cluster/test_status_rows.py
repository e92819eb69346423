"""What ``escrowmq status`` prints for groups and feedback processes: figures, and alarms in plain words."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from escrowmq.actors.admin.types import ClusterStatus, FeedbackStatus, GroupStatus, ReplicaStatus
from escrowmq.cluster.cli import output
from escrowmq.cluster.cli import status as command
from escrowmq.cluster.cli.output import Format, duration, plain
from escrowmq.cluster.cli.status import (
    StatusSnapshot,
    feedback_rows,
    group_rows,
    replica_row,
    show,
    show_again,
)
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.replication.calling.answers import AcrossReport, GivenIdsReport, OverdueReport


def status(
    across: AcrossReport | None = None,
    ids: GivenIdsReport | None = None,
    feedback: tuple[FeedbackStatus, ...] | None = (),
) -> ClusterStatus:
    return ClusterStatus("c", (GroupStatus(0, 1, 5, (), 2, across, ids),), feedback)


def test_a_group_is_shown_with_what_it_owes_and_its_alarms() -> None:
    across = AcrossReport(undone=4, oldest_ms=int(time.time() * 1000) - 90_000, branches=3, against_home=1)
    (row,) = group_rows(status(across, GivenIdsReport(count=12, most=100)))
    assert (row["format_level"], row["decisions_not_done"], row["branches_open"]) == (2, 4, 3)
    assert row["oldest"] in ("90.0 s", "90.1 s", "90.2 s") and row["branch_against_home"] == 1
    assert row["ids_of_applications"] == "12 of 100" and row["ids_remembered"] == "as promised"


def test_it_says_aloud_when_ids_are_not_remembered_as_long_as_promised() -> None:
    (row,) = group_rows(status(ids=GivenIdsReport(count=90, most=100, short_ms=3 * 3_600_000)))
    assert row["ids_remembered"] == "ONLY 3.0 h: too many came"


def test_checks_that_are_overdue_are_told_with_what_to_do() -> None:
    late = OverdueReport(count=3, oldest_ms=300_000, app="shop", topic="orders", tx_id="t2")
    group = GroupStatus(0, 1, 5, (), overdue=late)
    (row,) = group_rows(ClusterStatus("c", (group,)))
    assert row["checks_overdue"] == 3
    (told,) = command.alarms(group)
    assert told.startswith("3 open transactions are overdue for a check, that of app shop, topic orders by")
    assert "5.0 min: start an instance of the app" in told
    (more,) = command.alarms(replace(group, overdue=msgspec.structs.replace(late, limited=True)))
    assert more.startswith("at least 3 open")
    assert command.alarms(replace(group, overdue=OverdueReport())) == []


def test_a_group_of_which_nobody_answers() -> None:
    (row,) = group_rows(status())
    assert (row["decisions_not_done"], row["ids_remembered"], row["oldest"]) == (None, None, None)


def test_a_feedback_process_is_shown_alive_or_not() -> None:
    report = ShardReport(
        shard=0, shards=2, pid=77, apps=2, pairs_here=5, polls_parked=4, counts={"polls_refused": 6}
    )
    alive, dead = feedback_rows(status(feedback=(FeedbackStatus(0, report), FeedbackStatus(1, None))))
    assert (alive["alive"], alive["pairs"], alive["producers_parked"]) == (True, 5, 4)
    assert (alive["polls_refused"], alive["errors"]) == (6, 0)
    assert (dead["alive"], dead["pairs"]) == (False, None)
    assert feedback_rows(status()) == []
    (unknown,) = feedback_rows(status(feedback=None))
    assert "not known" in unknown["feedback_process"]


def test_a_fences_table_that_no_producer_has_is_a_problem_said_once() -> None:
    table = "0a" * 16
    lacking = ShardReport(shard=0, shards=2, tables_missing=(f"web shop {table}",))
    asked = FeedbackStatus(0, lacking), FeedbackStatus(1, lacking), FeedbackStatus(2, None)
    (told,) = command.tables_missing(status(feedback=asked))
    assert told.startswith(f"app web shop: no producer online has the fence's table {table}, ")
    assert command.problems_of(status(feedback=asked), [])[-1] == told
    assert command.tables_missing(status(feedback=None)) == []


def test_a_replica_is_shown_with_its_disk_and_all_that_is_wrong() -> None:
    replica = ReplicaStatus(
        0, 2, True, "follower", 5, 1, 9, 9, 1, 9, 9, 0, {"free_bytes": 12_000_000}, ("its disk is full",)
    )
    row = replica_row(replica, {"node": "n1", "failure": {"text": "CorruptLog: x"}})
    assert (row["free_disk"], row["failure"], row["well"]) == ("12.0 MB", "CorruptLog: x", False)
    found = ClusterStatus("c", (GroupStatus(0, 1, 5, (replica,)),))
    assert not found.healthy and found.problems == ("group 0: replica 2: its disk is full",)
    lone = ClusterStatus("c", (GroupStatus(4, None, 5, ()),))
    assert not lone.healthy and lone.problems == ("group 4: no leader",)


def test_as_json_the_figures_are_numbers() -> None:
    shown = plain(status(AcrossReport(undone=4)))
    assert shown["groups"][0]["across"]["undone"] == 4 and shown["groups"][0]["given_ids"] is None


def test_durations_are_written_for_people() -> None:
    assert [duration(ms) for ms in (500, 119_000, 300_000, 5 * 3_600_000, 3 * 86_400_000)] == [
        "0.5 s", "119.0 s", "5.0 min", "5.0 h", "3.0 d",
    ]  # fmt: skip


def busy() -> StatusSnapshot:
    """A cluster of long numbers and long names, and one replica that has not answered."""
    across = AcrossReport(undone=12_345, oldest_ms=1, branches=2_000_000, due=7, against_home=3)
    details = {"free_bytes": 1_234_567_890_123, "scrub": {"damaged": 12, "mended": 12, "done_ms": 5}}
    well = ReplicaStatus(
        15, 0, True, "follower", 123, 1, 9_876_543_210, 9_876_543_210, 1, 5, 5, 2_000_000, details
    )
    silent = ReplicaStatus(15, 14, False, "?", 0, None, 0, 0, 0, 0, 0, 0, {}, ("it does not answer",))
    report = ShardReport(shard=0, shards=2, pid=77, apps=5_000, pairs_here=50_000, polls_parked=4, counts={})
    ids = GivenIdsReport(count=2_000_000, most=2_000_000, short_ms=3_600_000)
    group = GroupStatus(15, 14, 5, (well, silent), 4, across, ids)
    found = ClusterStatus("c" * 32, (group,), (FeedbackStatus(0, report),))
    seats: list[dict[str, object]] = [
        {"group": 15, "replica": r, "node": "worker-10-128-255-255", "condition": "alive"} for r in (0, 14)
    ]
    seats[1]["failure"] = {"text": "DiskFailed: sda"}
    return StatusSnapshot(
        found, {"nodes": [1, 2], "replicas": seats}, None, None, "10.128.255.255:6379", "escrowmq"
    )


def printed(monkeypatch: pytest.MonkeyPatch, *, wide: bool) -> list[str]:
    file = io.StringIO()
    for module in (output, command):
        monkeypatch.setattr(module, "console", lambda: Console(file=file, width=100, highlight=False))
    show(busy(), Format.table, wide=wide)
    return file.getvalue().splitlines()


def test_a_status_fits_a_terminal_of_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cell of a replica is broken over lines; with all columns most are."""
    whole = ("15/0", "worker-10-128-255-255", "follower", "9876543210", "2000000", "1.2 TB", "alive")
    lines = printed(monkeypatch, wide=False)
    assert max(map(len, lines)) <= 100
    (row,) = [line for line in lines if "15/0" in line]
    assert all(cell in row for cell in whole), row
    assert any("12345" in line and "2000000" in line for line in lines)
    for problem in ("replica 14: it does not answer", "3 branches against their home", "DiskFailed: sda"):
        assert any(problem in line for line in lines), problem
    assert any("50000" in line for line in lines)
    assert not any(all(cell in line for cell in whole) for line in printed(monkeypatch, wide=True))


def test_a_look_that_is_repeated_into_a_pipe_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        show_again(busy(), Format.json, wide=False)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["healthy"] for line in lines] == [False, False]
