"""Which calls of the Broker actor share threads: a call that waits for the log must not hold up what keeps
clients alive."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from escrowmq.actors.broker import broker as module
from escrowmq.actors.broker.broker import Broker
from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.actors.client.topology import ClusterInfo

#: They have operations done, and come back when a majority has them: while the log stands still, after 15 s.
WAIT_FOR_THE_LOG = {"submit", "follow", "commit_offsets", "group_delete"}
#: If these are not answered, a member or a leader counts as dead.
KEEP_ALIVE = {"whoami", "group_join", "group_heartbeat", "group_leave", "committed", "offsets", "lock_pairs"}


def group_of(method: str) -> str:
    group: str = getattr(Broker, method).__ray_concurrency_group__
    return group


def held_up() -> set[str]:
    """Calls that keep clients alive but get no answer while all threads of some kind wait for the log."""
    waiting = {group_of(method) for method in WAIT_FOR_THE_LOG}
    return {method for method in KEEP_ALIVE if group_of(method) in waiting}


def test_what_waits_for_the_log_shares_no_threads_with_what_keeps_clients_alive() -> None:
    """Sixteen commits that waited for a majority stopped all heartbeats, and with them the consumer
    groups."""
    assert held_up() == set()


@pytest.mark.parametrize("method", sorted(WAIT_FOR_THE_LOG))
def test_planted_a_call_that_waits_among_the_others_is_found(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getattr(Broker, method), "__ray_concurrency_group__", "control")
    assert held_up() == KEEP_ALIVE


def test_every_kind_of_call_has_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, int] = {}

    class Options:
        def options(self, **settings: Any) -> Options:
            return self

        def remote(self, *args: Any) -> None: ...

    def remote(*, concurrency_groups: dict[str, int]) -> Any:
        made.update(concurrency_groups)
        return lambda actor: Options()

    monkeypatch.setattr(module.ray, "remote", remote)
    config = BrokerConfig()
    module.start_broker(ClusterInfo("c", "test", 1, 1), 0, 0, config, "/nowhere", "127.0.0.1", b"s")
    named = {
        method.__ray_concurrency_group__
        for _, method in inspect.getmembers(Broker)
        if hasattr(method, "__ray_concurrency_group__")
    }
    assert named == made.keys()
    assert made["settle"] == config.produce_threads
