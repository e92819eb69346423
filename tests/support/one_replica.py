"""A group of one over real files, and what must not be left of it."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from escrowmq.actors.broker.parts import Parts
from escrowmq.replication.host.replica_process import open_replica
from escrowmq.replication.host.replica_setup import ReplicaSetup
from escrowmq.replication.host.running_replica import RunningReplica
from tests.support.waiting import wait_until

#: A leak stays; what is open for a moment does not.
MOMENT_S = 3.0


@contextmanager
def running(setup: ReplicaSetup) -> Iterator[RunningReplica]:
    replica = open_replica(setup)
    try:
        wait_until(lambda: replica.whoami()[0], what="the leader")
        yield replica
    finally:
        replica.close()


@contextmanager
def nothing_left(*, after_a_run: bool = False) -> Iterator[None]:
    """After the block there are no threads and no open or mapped files that were not there before it.

    ``after_a_run``: a replica that ran keeps its mapped files until its cycles are collected; its process
    ends anyway.
    """
    gc.collect()
    threads, files = set(threading.enumerate()), open_files()
    yield
    wait_until(lambda: set(threading.enumerate()) <= threads, what="the end of every thread")
    if after_a_run:
        gc.collect()
    # A thread that an earlier test has left may close something meanwhile, or hold a socket for a moment.
    with suppress(AssertionError):
        wait_until(lambda: not open_files() - files, MOMENT_S)
    left = open_files() - files
    others = sorted(thread.name for thread in threads)
    assert not left, f"opened and not closed: {sorted(left.elements())}; threads from before: {others}"


def opens_and_has_everything(setup: ReplicaSetup) -> None:
    with running(setup) as replica:
        assert Parts(replica).reads.partition_bounds("t") == {0: (0, 20)}


def open_files() -> Counter[str]:
    """What the descriptors of this process are open on, but for those of event loops: a closed one's
    number may be anybody's by now."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:  # the listing's own
            continue
    return Counter(path.partition(":")[0] if path.startswith(("pipe", "socket")) else path for path in found)
