"""Defect D: stock compaction clears the journal and adds the rest again; a kill in between loses the tail.

The stock journal is stopped after each single write of the operation, as by SIGKILL: what was written stays,
the rest never happens. Ours is stopped at each disk operation of dropping segments, by kill and by power cut.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pysyncobj.journal import FileJournal, ResizableFile

from escrowmq.replication.log.journal import SegmentJournal
from tests.sim.environment.disk import PowerCut
from tests.support.storage import command, fill, indexes, sim_disk

ENTRIES = 30
DROPPED = 10


class Killed(BaseException):
    """The process ends here."""


def stock_survivors(path: Path, writes: int) -> list[int] | None:
    """Compacts a copy of the stock journal, killed after ``writes``; None if it finished before."""
    work = path.with_name(f"killed-{writes}")
    shutil.copy(path, work)
    journal, left, real = FileJournal(str(work)), [writes], ResizableFile.write

    def write(self: ResizableFile, offset: int, values: bytes) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        real(self, offset, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResizableFile, "write", write)
        try:
            journal.deleteEntriesTo(DROPPED)
            return None
        except Killed:
            return [entry[1] for entry in FileJournal(str(work))]


def test_stock_compaction_loses_the_tail_when_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = FileJournal(str(path))
    for index in range(1, ENTRIES + 1):
        journal.add(command(index), index, 1)
    kept, lost, writes = 0, 0, 0
    while (survivors := stock_survivors(path, writes)) is not None:
        kept += survivors[-1:] == [ENTRIES]
        lost += survivors[-1:] != [ENTRIES]
        writes += 1
    assert lost == 2 * (ENTRIES - DROPPED), "every moment but before the first write"
    assert kept == 1


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
def test_our_retention_keeps_the_tail_wherever_it_is_stopped(power_cut: bool) -> None:
    stopped = 0
    for operations in range(100):
        disk = sim_disk(operations)
        journal = SegmentJournal(disk, segment_bytes=200)
        fill(journal, range(1, ENTRIES + 1))
        journal.sync()
        disk.stop_after(operations)
        journal.drop_before(DROPPED + 1)
        finished = True
        try:
            journal.sync()
        except PowerCut:
            finished = False
            stopped += 1
        disk.power_cut() if power_cut else disk.kill()
        survivors = SegmentJournal(disk, segment_bytes=200)
        assert indexes(survivors) == list(range(survivors.first_index, ENTRIES + 1))
        assert survivors.first_index <= DROPPED + 1
        assert all(survivors.read(i) == command(i) for i in indexes(survivors))
        if finished:
            break
    assert stopped >= 10, "two files and a directory sync for each of five segments"
