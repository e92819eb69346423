"""``escrowmq consume --group`` whose output cannot be written: nothing is committed that nobody got."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress

import pytest

from escrowmq import Cluster, Message
from escrowmq.cluster.cli.app import app
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster(commands_join: Callable[[Cluster], None]) -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        with made.producer("shop") as producer:
            for value in (b"one", b"two", b"three"):
                producer.send(Message("orders", value)).result(0)
        commands_join(made)
        yield made


class Output(io.RawIOBase):
    """A file or a pipe that takes nothing."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        raise self.error


@pytest.mark.parametrize("how", [["--format", "json"], ["-f", "%v\\n"], []])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EPIPE])
def test_what_was_not_written_is_not_committed(cluster: InMemoryCluster, how: list[str], number: int) -> None:
    error = OSError(number, "it cannot be written")
    output = io.TextIOWrapper(io.BufferedWriter(Output(error)))
    with redirect_stdout(output), redirect_stderr(io.StringIO()), suppress(SystemExit, OSError):
        app(["consume", "orders", "--group", "billing", *how])
    with suppress(OSError):
        output.close()
    partitions = cluster.admin.describe_group("billing").partitions
    assert [partition.committed for partition in partitions if partition.committed] == []
