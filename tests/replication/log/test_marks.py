"""The marks beside the log are durable in both directions."""

from __future__ import annotations

import random

from escrowmq.replication.log.datadir import LEARNER, LOST, Marks
from tests.sim.environment.disk import SimDisk


def test_a_power_cut_neither_takes_a_mark_nor_brings_one_back() -> None:
    """A replica that counts again and was made a learner by a power cut would be missing in a majority."""
    for seed in range(20):
        disk = SimDisk(random.Random(seed))
        marks = Marks(disk)
        marks.write(LEARNER, LOST)
        disk.power_cut()
        assert marks.read(LEARNER) == LOST
        marks.remove(LEARNER)
        disk.power_cut()
        assert marks.read(LEARNER) is None


def test_a_mark_that_is_not_set_costs_nothing_to_remove() -> None:
    disk = SimDisk(random.Random(0))
    Marks(disk).remove(LEARNER)
    assert disk.operations == 0
