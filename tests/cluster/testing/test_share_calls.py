"""What a cluster in memory answers to share consumers: as a real one, in the time that the test sets."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq import Message
from escrowmq.replication.calling.answers import AcquiredRow
from escrowmq.replication.format.share_ops import EARLIEST, share_ack, share_create
from escrowmq.testing import InMemoryCluster

ME, OTHER = "0" * 32, "1" * 32


class Calls:
    """Calls the broker as a client does; ``done`` fills as the answers come."""

    def __init__(self, cluster: InMemoryCluster) -> None:
        self._network = cluster.network
        (result,) = self("submit", share_create("mail", "orders", 0, EARLIEST, 1))[1]
        assert result == [0, 0]

    def start(self, method: str, *args: Any) -> list[Any]:
        done: list[Any] = []
        self._network.call(
            0, 0, method, args, lambda answer, error: done.append(error or answer), lambda: False
        )
        return done

    def __call__(self, method: str, *args: Any) -> Any:
        (answer,) = self.start(method, *args)
        return answer

    def acquire(self, member: str = ME, wait_s: float = 0.0) -> list[Any]:
        return self.start("share_acquire", "mail", member, ["orders"], 10, 1 << 20, 10.0, wait_s)


@pytest.fixture
def calls(cluster: InMemoryCluster) -> Calls:
    return Calls(cluster)


def leased(done: list[Any]) -> list[list[int]]:
    ((status, rows, *_),) = done
    assert status == "ok"
    return [list(AcquiredRow(*row).leased) for row in rows]


def test_a_call_waits_until_there_is_a_message_and_no_longer_than_it_said(
    cluster: InMemoryCluster, calls: Calls
) -> None:
    first, second = calls.acquire(wait_s=5.0), calls.acquire(OTHER, wait_s=5.0)
    cluster.clock.advance(4)
    assert not first and not second
    with cluster.producer("shop") as producer:
        producer.send(Message("orders", b"a")).result(0)
    assert leased(first) == [[0, 0, 0]]
    cluster.clock.advance(1)
    assert leased(second) == []


def test_a_lease_that_runs_out_or_is_given_back_goes_to_who_waits(
    cluster: InMemoryCluster, calls: Calls
) -> None:
    with cluster.producer("shop") as producer:
        producer.send(Message("orders", b"a")).result(0)
    assert leased(calls.acquire()) == [[0, 0, 0]]
    waits = calls.acquire(OTHER, wait_s=60.0)
    assert calls("share_extend", "mail", ME, [("orders", 0, [0, 0])], 20.0) == ("ok", [])
    cluster.clock.advance(19)
    assert not waits
    cluster.clock.advance(1.1)
    assert leased(waits) == [[0, 0, 1]]
    waits = calls.acquire(wait_s=60.0)
    assert calls("share_release", "mail", OTHER, [("orders", 0, [0, 0])]) == ("ok", [])
    assert leased(waits) == [[0, 0, 1]]


def test_what_is_acknowledged_does_not_come_again(cluster: InMemoryCluster, calls: Calls) -> None:
    with cluster.producer("shop") as producer:
        for value in (b"a", b"b"):
            producer.send(Message("orders", value)).result(0)
    assert leased(calls.acquire()) == [[0, 1, 0]]
    assert calls("submit", share_ack("mail", "orders", 0, [0, 0], 1)) == ("ok", [[0]])
    waits = calls.acquire(OTHER, wait_s=60.0)
    cluster.clock.advance(11)
    assert leased(waits) == [[1, 1, 1]]


@pytest.mark.parametrize("lease_s", [1e306, 10**400])
def test_a_lease_is_no_longer_than_half_a_day(cluster: InMemoryCluster, calls: Calls, lease_s: float) -> None:
    with cluster.producer("shop") as producer:
        producer.send(Message("orders", b"a")).result(0)
    asked = "mail", ME, ["orders"], 10, 1 << 20, lease_s, 0.0
    assert leased(calls.start("share_acquire", *asked)) == [[0, 0, 0]]
    cluster.clock.advance(12 * 3600 - 1)
    assert leased(calls.acquire(OTHER)) == []
    cluster.clock.advance(2)
    assert leased(calls.acquire(OTHER)) == [[0, 0, 1]]
