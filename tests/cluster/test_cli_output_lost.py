"""``escrowmq consume --group`` whose output cannot be written: nothing is committed that nobody got."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress

import pytest

from escrowmq import Message
from escrowmq.cluster.cli.app import app
from escrowmq.cluster.cli.options import ConnectionOptions
from escrowmq.testing import InMemoryCluster


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryCluster]:
    with InMemoryCluster() as made:
        made.admin.create_topic("orders")
        with made.producer("shop") as producer:
            for value in (b"one", b"two", b"three"):
                producer.send(Message("orders", value)).result(0)
        monkeypatch.setattr(ConnectionOptions, "joined", lambda self: nullcontext(made))
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
def test_what_was_not_written_is_not_committed(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch, how: list[str], number: int
) -> None:
    error = OSError(number, "it cannot be written")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", io.StringIO())
        patched.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Output(error))))
        with suppress(SystemExit, OSError):
            app(["consume", "orders", "--group", "billing", *how])
        with suppress(OSError):
            sys.stdout.close()
    partitions = cluster.admin.describe_group("billing").partitions
    assert [partition.committed for partition in partitions if partition.committed] == []
