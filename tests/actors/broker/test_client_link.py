"""A broker's offer of connections for clients: never waits, opens one door, leaves descriptors to the log."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.net.client_listener import ClientListener
from tests.support.broker_group import BrokerGroup
from tests.support.waiting import wait_until


@pytest.fixture
def one(tmp_path: Path) -> Iterator[BrokerGroup]:
    group = BrokerGroup(tmp_path, BrokerConfig(), 1)
    group.start()
    group.leader()
    yield group
    group.close()


def test_the_offer_never_waits_for_the_loop_and_opens_one_door(one: BrokerGroup) -> None:
    member, busy = one.leader(), threading.Event()
    member.parts.running.driver.submit(lambda: busy.wait(10.0) and None)
    began = time.monotonic()
    assert [member.parts.client_link() for _ in range(20)] == [None] * 20
    assert time.monotonic() - began < 5.0
    busy.set()
    wait_until(lambda: member.parts.client_link() is not None, what="the door")
    offers = {member.parts.client_link() for _ in range(5)}
    assert len(offers) == 1
    door = member.parts.running.driver.door
    assert door is not None
    one.stop(member.rid)
    assert door.open_to() is None


@pytest.mark.parametrize("variable", ["", "1"])
def test_without_tls_only(one: BrokerGroup, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", variable)
    parts = one.leader().parts
    if variable:
        assert parts.client_link() is None
        assert parts.running.driver.door is None
    else:
        wait_until(lambda: parts.client_link() is not None, what="the door")


def test_what_a_request_violates_ends_the_process_as_elsewhere_in_the_loop(
    one: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, ended = one.leader().parts, list[BaseException]()
    monkeypatch.setattr(parts.running.driver, "_fatal", ended.append)

    def broken(request: bytes, done: Any) -> None:
        raise AssertionError("an invariant is violated")

    door = ClientListener(broken, time.monotonic)
    parts.running.driver.serve(door)
    parts.running.driver.call(lambda: door.begin(b"", print))
    assert [str(error) for error in ended] == ["an invariant is violated"]


@pytest.mark.parametrize(("hard", "most"), [(400, 0), (1000, 250), (10_000, 4096)])
def test_clients_get_half_of_the_descriptors_that_the_log_does_not_need(hard: int, most: int) -> None:
    code = (
        "import resource; from escrowmq.actors.broker.parts import clients_max; "
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, {hard}), {hard})); print(clients_max())"
    )
    found = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert most - 20 <= found <= most
