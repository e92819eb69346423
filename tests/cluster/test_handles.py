"""Handles of one process share its connection to Ray: the last one leaves it."""

from __future__ import annotations

import functools
import itertools
import os
import socketserver
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster import address, connecting, local, ray_use
from escrowmq.cluster.config import Config
from escrowmq.cluster.settings import RaySettings
from escrowmq.replication.errors import ClusterNotFound, ConfigError, Unavailable


class FakeRay:
    def __init__(self) -> None:
        self.here, self.joins, self.leaves, self.lost = False, 0, 0, False
        self.during_init: Callable[[], object] = lambda: None
        self.used = ray_use.Connection(turn_timeout_s=5.0)

    def init(self, **options: Any) -> None:
        assert not self.here
        self.during_init()
        self.here, self.joins = True, self.joins + 1

    def shutdown(self) -> None:
        self.here, self.leaves = False, self.leaves + 1

    def context(self) -> SimpleNamespace:
        job = f"job {self.joins}"
        return SimpleNamespace(gcs_address=where(), get_job_id=lambda: job, get_node_id=lambda: "here")

    def discover(self, *asked: str) -> ClusterInfo:
        if self.lost:
            raise ClusterNotFound("nothing here")
        return ClusterInfo("c", "escrowmq", 1, 1)


class Head(socketserver.ThreadingTCPServer):
    """Greets as Ray's head does, once as many clients as ``together`` are there."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.StreamRequestHandler)
        self.together, self.greets = threading.Barrier(1), True

    def finish_request(self, request: Any, client_address: Any) -> None:
        self.together.wait(2.0)
        if self.greets:
            request.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
            request.recv(100)


@functools.cache
def head() -> Head:
    """One for all tests here; it ends with the process."""
    made = Head()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    return made


def where() -> str:
    return f"127.0.0.1:{head().server_address[1]}"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray, "init", fake.init)
    monkeypatch.setattr(ray, "shutdown", fake.shutdown)
    monkeypatch.setattr(ray, "is_initialized", lambda: fake.here)
    monkeypatch.setattr(ray, "get_runtime_context", fake.context)
    monkeypatch.setattr(ray_use, "connection", fake.used)
    monkeypatch.setattr(address, "_check_token", lambda where: None)
    monkeypatch.setattr(connecting, "discover", fake.discover)
    return fake


def connect() -> Callable[[], None]:
    return connecting.connect(where(), config=Config()).close


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
    address.join_ray(where(), "spark")
    close()
    connect()()
    assert (fake.here, fake.leaves) == (True, 0)


@pytest.mark.parametrize("fails", ["TemporaryDir", "start_ray", "SupervisorPlan", "launch"])
def test_a_start_that_fails_leaves_no_handle_behind(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(local, fails, refuse)
    with pytest.raises(OSError, match="no room"):
        local.start_local(replicas=1)
    assert not fake.here and fake.used.users == 0
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
        local.start_ray(RaySettings(), "")
        ray_use.leave_with_the_last(started=True)
    second = connect()
    address.join_ray(where(), "spark")
    first()
    assert fake.here
    second()
    assert not fake.here


def test_threads_that_have_a_dead_address_do_not_wait_for_each_other(fake: FakeRay) -> None:
    server = head()
    server.together, server.greets = threading.Barrier(2), False
    try:
        with ThreadPoolExecutor(2) as pool:
            failed = [pool.submit(connect) for _ in range(2)]
            assert [type(future.exception()) for future in failed] == [ClusterNotFound] * 2
        assert not server.together.broken, "both were there at a time"
    finally:
        server.together, server.greets = threading.Barrier(1), True
    assert fake.used.users == 0


def test_a_thread_that_waits_too_long_for_its_turn_is_told(fake: FakeRay) -> None:
    fake.used.turn_timeout_s = 0.05

    def another_thread() -> None:
        with (
            ThreadPoolExecutor(1) as pool,
            pytest.raises(Unavailable, match="another thread of this process"),
        ):
            pool.submit(connect).result()

    fake.during_init = another_thread
    connect()()
    assert (fake.joins, fake.leaves) == (1, 1)


def test_a_signal_handler_may_close_a_handle_while_its_thread_joins(fake: FakeRay) -> None:
    early = ray_use.use_ray()
    fake.during_init = early
    close = connect()
    assert fake.here
    close()
    assert (fake.here, fake.leaves) == (False, 1)


def in_child(story: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            story()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def refused() -> None:
    with pytest.raises(ConfigError, match=r"Ray cannot be used in this process: .* before os\.fork"):
        connect()


def test_after_a_fork_nothing_waits_for_threads_of_the_parent(fake: FakeRay) -> None:
    """A child is made while another thread is joining Ray."""
    joining, done = threading.Event(), threading.Event()

    def join_slowly() -> None:
        joining.set()
        assert done.wait(4.0)

    fake.during_init = join_slowly
    early = ray_use.use_ray()

    def child() -> None:
        refused()
        early()  # touches nothing
        assert fake.leaves == 0
        in_child(refused)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(connect)
        assert joining.wait(4.0)
        in_child(child)
        done.set()
        late.result()()
    assert fake.here, "another handle uses it"
    early()
    assert (fake.here, fake.leaves) == (False, 1)


@pytest.mark.parametrize("left", [False, True])
def test_a_process_that_had_used_ray_is_known_after_it_has_left(fake: FakeRay, left: bool) -> None:
    in_child(connect)  # of a parent that had not used Ray: its children may
    connect()
    if left:
        ray.shutdown()
    in_child(refused)
