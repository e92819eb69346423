"""A replica whose files are deleted under it ends, instead of acknowledging into files that have no name."""

from __future__ import annotations

import shutil

import pytest

from escrowmq.replication.errors import DiskFailed
from tests.support.broker_group import BrokerGroup
from tests.support.waiting import wait_until


@pytest.mark.parametrize("what", ["directory", "log", "newest segment", "moved away"])
def test_it_ends_and_comes_back_as_one_that_lost_its_disk(group: BrokerGroup, what: str) -> None:
    follower, _ = group.follower()
    path = follower.parts.running.setup.data_dir
    if what == "newest segment":
        name = follower.parts.running.journal.newest_file()
        assert name is not None
        (path / "log" / name).unlink()
    elif what == "moved away":  # and another one is put in its place
        path.rename(path.with_name("elsewhere"))
        (path / "log").mkdir(parents=True)
    else:
        shutil.rmtree(path if what == "directory" else path / "log")
    wait_until(lambda: follower.rid in group.ended, 5, "the end of the replica")
    error = group.ended[follower.rid]
    assert isinstance(error, DiskFailed) and "was removed under this replica" in str(error)
    group.publish("meanwhile")  # the others are a majority
    group.stop(follower.rid)
    if what == "directory":
        group.ended.clear()
        group.start(follower.rid)
        wait_until(lambda: not group.alive[follower.rid].parts.running.learner, 20, "its full membership")
        group.publish("after")
        assert not group.ended


def test_a_replica_that_rolls_trims_and_cuts_misses_nothing(group: BrokerGroup) -> None:
    """Files that go in the ordinary course are not missed."""
    for number in range(30):
        group.publish(str(number))
    leader = group.leader().parts.running
    assert leader.missing_file() == "" and not group.ended
