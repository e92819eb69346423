"""Handles of one process share its connection to Ray: the last one leaves it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from escrowmq.cluster import address, connecting, local, ray_use
from escrowmq.cluster.config import Config
from escrowmq.replication.errors import ClusterNotFound, ConfigError, Unavailable

WHERE = "127.0.0.1:6379"


class FakeRay:
    def __init__(self) -> None:
        self.here, self.joins, self.leaves, self.lost = False, 0, 0, False
        self.during_init: Callable[[], object] = lambda: None

    def init(self, **options: Any) -> None:
        assert not self.here
        self.during_init()
        self.here, self.joins = True, self.joins + 1

    def shutdown(self) -> None:
        self.here, self.leaves = False, self.leaves + 1

    def discover(self, *asked: str) -> None:
        if self.lost:
            raise ClusterNotFound("nothing here")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray, "init", fake.init)
    monkeypatch.setattr(ray, "shutdown", fake.shutdown)
    monkeypatch.setattr(ray, "is_initialized", lambda: fake.here)
    monkeypatch.setattr(ray_use, "_process", ray_use._Process())
    monkeypatch.setattr(ray_use, "_connection", lambda: f"connection {fake.joins}")
    monkeypatch.setattr(ray_use, "TURN_TIMEOUT_S", 5.0)
    monkeypatch.setattr(address, "current_address", lambda: WHERE)
    monkeypatch.setattr(address, "check_reachable", lambda where: None)
    monkeypatch.setattr(address, "_check_token", lambda where: None)
    monkeypatch.setattr(connecting, "discover", fake.discover)
    monkeypatch.setattr(connecting, "HeadWatch", lambda *given: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(connecting, "Cluster", lambda *given: SimpleNamespace(close=given[-1]))
    monkeypatch.setattr(local, "start_ray", lambda *given: fake.init())
    return fake


def connect() -> Callable[[], None]:
    return connecting.connect(WHERE, config=Config()).close


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_handle_leaves_in_any_order(fake: FakeRay, order: tuple[int, ...]) -> None:
    handles = [connect() for _ in order]
    for left, number in enumerate(order):
        assert fake.here, f"{left} closed"
        handles[number]()
        handles[number]()  # counts once
    assert (fake.here, fake.joins, fake.leaves) == (False, 1, 1)
    connect()()
    assert (fake.here, fake.joins, fake.leaves) == (False, 2, 2)


def test_a_handle_that_finds_nothing_takes_no_ray_from_others(fake: FakeRay) -> None:
    close = connect()
    fake.lost = True
    with pytest.raises(ClusterNotFound):
        connect()
    assert fake.here
    close()
    assert not fake.here
    with pytest.raises(ClusterNotFound):
        connect()
    assert (fake.here, fake.joins, fake.leaves) == (False, 2, 2)


def test_what_the_application_joined_stays(fake: FakeRay) -> None:
    ray.init()
    connect()()
    assert fake.here and fake.leaves == 0


def test_threads_that_connect_at_once_join_once(fake: FakeRay) -> None:
    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(lambda _: connect(), range(32)))
        list(pool.map(lambda close: close(), handles[1:]))
    assert (fake.here, fake.joins, fake.leaves) == (True, 1, 0)
    handles[0]()
    assert not fake.here


def test_what_the_application_joined_while_a_handle_lived_stays(fake: FakeRay) -> None:
    close = connect()
    ray.shutdown()
    ray.init()
    close()
    assert (fake.here, fake.joins, fake.leaves) == (True, 2, 1)


def test_spark_and_datasets_keep_what_a_handle_has_joined(fake: FakeRay) -> None:
    close = connect()
    address.join_ray(WHERE, "spark")
    close()
    connect()()
    assert (fake.here, fake.leaves) == (True, 0)


@pytest.mark.parametrize("fails", ["TemporaryDir", "start_ray", "SupervisorPlan", "launch"])
def test_a_start_that_fails_leaves_no_handle_behind(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "here"))
    monkeypatch.setattr(local, fails, refuse)
    with pytest.raises(OSError, match="no room"):
        local.start_local(replicas=1)
    assert not fake.here and ray_use._process.users == 0
    close = connect()
    if fails != "start_ray":  # the one that is there is used
        with pytest.raises(OSError, match="no room"):
            local.start_local(replicas=1)
    assert fake.here
    close()
    assert not fake.here


def test_ray_that_was_started_for_a_handle_ends_with_the_last(fake: FakeRay) -> None:
    with ray_use.changing_ray():
        first = ray_use.use_ray()
        local.start_ray(None, "")  # type: ignore[arg-type]
        ray_use.leave_with_the_last(started=True)
    second = connect()
    address.join_ray(WHERE, "spark")
    first()
    assert fake.here
    second()
    assert not fake.here


def test_threads_that_have_a_dead_address_do_not_wait_for_each_other(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=4.0)

    def dead(where: str) -> None:
        both.wait()
        raise ClusterNotFound("nobody answers")

    monkeypatch.setattr(address, "check_reachable", dead)
    with ThreadPoolExecutor(2) as pool:
        failed = [pool.submit(connect) for _ in range(2)]
        assert [type(future.exception()) for future in failed] == [ClusterNotFound] * 2
    assert ray_use._process.users == 0


def test_a_thread_that_waits_too_long_for_its_turn_is_told(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_use, "TURN_TIMEOUT_S", 0.05)

    def another_thread() -> None:
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(Unavailable, match="another thread of this process"),
        ):
            pool.submit(connect).result()

    fake.during_init = another_thread
    connect()()
    assert (fake.joins, fake.leaves) == (1, 1)


def test_a_signal_handler_may_close_a_handle_while_its_thread_joins(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = ray_use.use_ray()
    fake.during_init = early
    close = connect()
    assert fake.here
    close()
    assert (fake.here, fake.leaves) == (False, 1)


def test_after_a_fork_nothing_waits_for_threads_of_the_parent(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the hook does in the child, called here while another thread is joining Ray."""
    ended = []
    monkeypatch.setattr(ray_use, "_end_without_ray", lambda: ended.append(1))
    monkeypatch.setattr(ray_use, "_forked", False)
    joining, done = threading.Event(), threading.Event()

    def join_slowly() -> None:
        joining.set()
        assert done.wait(4.0)

    fake.during_init = join_slowly
    early = ray_use.use_ray()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(connect)
        assert joining.wait(4.0)
        monkeypatch.setattr(ray_use, "TURN_TIMEOUT_S", 0.05)
        parent = ray_use._process
        ray_use._in_child()
        with pytest.raises(ConfigError, match=r"before os\.fork"):
            connect()
        early()  # touches nothing
        assert (ended, ray_use._process.users, parent.users) == ([1], 0, 2)
        done.set()
        late.result()
    ray_use._in_child()  # a child of the child
    assert ended == [1] and fake.here


@pytest.mark.parametrize("left", [False, True])
def test_a_process_that_had_used_ray_is_known_after_it_has_left(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    monkeypatch.setattr(ray_use, "_end_without_ray", lambda: None)
    monkeypatch.setattr(ray_use, "_forked", False)
    ray_use._in_child()
    connect()  # a parent that had not used Ray: its children may
    if left:
        ray.shutdown()
    ray_use._in_child()
    with pytest.raises(ConfigError, match="Ray cannot be used in this process"):
        connect()
