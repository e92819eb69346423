"""Defect K: the stock journal and its term are never synced; a power cut loses what was acknowledged.

Both are observed on the real file system; our log is also put under a real SIGKILL, repeatedly.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pysyncobj.journal import FileJournal

from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from tests.support.power import PowerWatch
from tests.support.storage import command, fill, indexes


def test_stock_loses_log_and_vote_in_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "stock"
    folder.mkdir()
    watch = PowerWatch(folder, monkeypatch)
    journal = FileJournal(str(folder / "journal"))
    for index in range(1, 11):
        journal.add(command(index), index, 3)
    journal.setCurrentTerm(3, "r1")
    journal.onOneSecondTimer()
    assert watch.syncs == 0
    survivor = FileJournal(str(watch.after_power_cut(tmp_path / "after") / "journal"))
    assert len(survivor) == 0
    assert (survivor.getCurrentTerm(), survivor.getVotedForNodeId()) == (0, None)


def test_ours_keeps_log_and_vote_in_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    watch = PowerWatch(folder, monkeypatch)
    journal = SegmentJournal(RealDisk(folder), segment_bytes=300)
    for step in range(1, 30):
        fill(journal, [step])
        if step % 3 == 0:
            journal.setCurrentTerm(step, f"r{step % 2}")
        if step % 2 == 0:
            journal.sync()
        survivor = SegmentJournal(
            RealDisk(watch.after_power_cut(tmp_path / f"after-{step}")), segment_bytes=300
        )
        assert survivor.last_index == journal.durable_index == step - step % 2
        assert [survivor.read(i) for i in indexes(survivor)] == [command(i) for i in indexes(survivor)]
        assert survivor.getCurrentTerm() == journal.getCurrentTerm()
        assert survivor.getVotedForNodeId() == journal.getVotedForNodeId()


WRITER = """
import sys
from pathlib import Path
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from tests.support.storage import fill

journal = SegmentJournal(RealDisk(Path(sys.argv[1])), segment_bytes=4000, cache_bytes=1000)
while True:
    first = journal.last_index + 1
    fill(journal, range(first, first + 1 + first % 7))
    journal.sync()
    if first % 50 < 7:
        journal.drop_before(first - 300)
        journal.setCurrentTerm(first, None)
    print(journal.durable_index, journal.getCurrentTerm(), flush=True)
"""


def test_ours_survives_sigkill_with_all_that_was_reported_durable(tmp_path: Path) -> None:
    seed = 20
    rng = random.Random(seed)
    for round_number in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(rng.randrange(5, 150))]
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
        child.stdout.close()
        child.wait()
        whole = [line.split() for line in lines if line.endswith("\n")]
        durable, term = map(int, whole[-1])
        journal = SegmentJournal(RealDisk(tmp_path), segment_bytes=4000)
        where = f"seed {seed}, round {round_number}"
        assert journal.last_index >= durable, where
        assert journal.getCurrentTerm() >= term, where
        assert all(journal.read(i) == command(i) for i in indexes(journal)), where
        journal.close()
