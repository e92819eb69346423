"""Commands that only read, answered by an exporter or supervisor of the same user over a Unix socket."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.actors.admin.types import (
    ClusterStatus,
    GroupDescription,
    GroupMembers,
    GroupPartition,
    MemberChange,
    NodeStatus,
    ReplicaShift,
)
from escrowmq.actors.client.consumer_groups import MemberDescription
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster import reading_client
from escrowmq.cluster.reading_client import (
    READS,
    Answer,
    NotAnswered,
    Question,
    StatusSnapshot,
    ask,
    folders,
    is_ours,
    receive,
    send,
)
from escrowmq.cluster.settings import ClusterSettings, RaySettings
from escrowmq.cluster.supervisor import reading_server
from escrowmq.cluster.supervisor.reading_server import AT_A_TIME, ReadingServer
from escrowmq.replication.errors import Closed, ConfigError, Unavailable, UnknownGroup
from escrowmq.replication.model import OpenTransaction, TopicInfo
from tests.support.command_line import good, run
from tests.support.places import info
from tests.support.waiting import wait_until

ADDRESS = "10.0.0.1:6379"
TRANSACTION = OpenTransaction("shop", "t1", "q1", "orders", 1, 2, 3, False, 1, -1)
GROUP = GroupDescription(
    "g",
    0,
    (MemberDescription("m", 1 << 40, ("orders",), (("orders", 0),), 1.5),),
    (GroupPartition("orders", 0, "m", None, 7, None),),
)

MEMBERS = (GroupMembers(0, 1, 4, (0, 1, 2), (), 3, "x", True),)


class Admin:
    """The admin of a small cluster."""

    def topics(self) -> list[TopicInfo]:
        return [info("orders", 2)]

    def groups(self) -> list[str]:
        return ["g"]

    def describe_groups(self, names: list[str]) -> list[GroupDescription]:
        return [GROUP for _ in names]

    def describe_group(self, name: str) -> GroupDescription:
        return GROUP if name == "g" else GroupDescription(name, 0, (), ())

    def list_transactions(self, *_: Any) -> list[OpenTransaction]:
        return [TRANSACTION]

    def describe_topic(self, name: str) -> Any:
        raise Unavailable(f"no leader for {name}", 1.5)

    def status(self) -> ClusterStatus:
        return ClusterStatus("c", ())

    def change_settings(self) -> dict[str, int]:
        return {"remember_ids_s": 1}

    def members(self) -> tuple[GroupMembers, ...]:
        return MEMBERS

    def member_changes(self) -> tuple[MemberChange, ...]:
        return (MemberChange(0, 3, (0, 1), (2,), True, "a node", None),)

    def nodes(self) -> tuple[NodeStatus, ...]:
        return (NodeStatus("a", "open", True, True, 3, 1),)

    def plan_rebalance(self) -> tuple[ReplicaShift, ...]:
        return (ReplicaShift(0, 1, "a", "b", False),)


class FakeCluster:
    """What the server asks of a cluster."""

    def __init__(self, admin: Admin | None = None) -> None:
        self.info, self.address, self.admin = ClusterInfo("c", "escrowmq", 1, 3), ADDRESS, admin or Admin()

    def health(self) -> dict[str, Any]:
        return {"nodes": [{"node": "a"}], "replicas": []}


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: that of a Unix socket has at most 107 characters."""
    return tmp_path_factory.mktemp("s")


class House:
    """The machine as a user sees it: folders of sockets, a login or none, and which clusters run here."""

    def __init__(self, base: Path) -> None:
        self.logins, self.shared, self.here = base / "no-logins", base / "shared", [ADDRESS]

    def folders(self) -> list[Path]:
        return folders(self.logins, self.shared)

    def server(self, admin: Admin | None = None) -> ReadingServer:
        cluster: Any = FakeCluster(admin)
        return ReadingServer(cluster, "exporter", self.folders(), here=lambda: self.here)

    @contextlib.contextmanager
    def serving(self, admin: Admin | None = None) -> Iterator[ReadingServer]:
        made = self.server(admin)
        made.start()
        try:
            yield made
        finally:
            made.close()

    def ask(
        self, read: str, *arguments: Any, address: str = "auto", namespace: str | None = None, **more: Any
    ) -> Any:
        return ask(address, namespace, None, read, list(arguments), where=self.folders(), **more)


@pytest.fixture
def house(base: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in [name for name in os.environ if name.startswith("ESCROWMQ_")]:
        monkeypatch.delenv(name)
    return House(base)


@pytest.fixture
def where(house: House, base: Path) -> Path:
    return base / "escrowmq"


@pytest.fixture
def server(house: House, where: Path) -> Iterator[ReadingServer]:
    with house.serving() as made:
        yield made
    assert list(where.iterdir()) == []


def test_answers_are_what_they_were(house: House, server: ReadingServer) -> None:
    assert house.ask("topics") == [info("orders", 2)]
    assert house.ask("groups") == [GROUP]
    assert house.ask("group", "g", address=ADDRESS) == GROUP
    assert house.ask("transactions", None, None, None, 10) == [TRANSACTION]
    assert house.ask("members") == MEMBERS and house.ask("settings") == {"remember_ids_s": 1}
    assert house.ask("changes")[0].learners == (2,) and house.ask("nodes")[0].head
    assert house.ask("rebalance")[0].to_node == "b"
    look = house.ask("status")
    assert isinstance(look, StatusSnapshot) and look.found == ClusterStatus("c", ()) and look.well
    assert (look.health["nodes"], look.address, look.namespace) == ([{"node": "a"}], ADDRESS, "escrowmq")


def test_errors_of_the_cluster_are_errors_here(house: House, server: ReadingServer) -> None:
    with pytest.raises(UnknownGroup, match="unknown consumer group 'nobody'"):
        house.ask("group", "nobody")
    with pytest.raises(Unavailable, match="no leader for orders") as caught:
        house.ask("topic", "orders")
    assert caught.value.retry_after_s == 1.5


def test_every_answer_has_a_type_that_can_be_read() -> None:
    for read in READS.values():
        msgspec.msgpack.Decoder(read.kind)


@pytest.mark.parametrize(
    ("options", "here", "why"),
    [
        ({"namespace": "other"}, [ADDRESS], "serves namespace 'escrowmq'"),
        ({"address": "10.0.0.2:6379"}, [ADDRESS], "serves the cluster at"),
        ({}, [ADDRESS, "10.0.0.1:6380"], "serves the cluster at"),
        ({}, [], "serves the cluster at"),
    ],
    ids=["another namespace", "another address", "two clusters here", "its cluster is elsewhere"],
)
def test_it_answers_for_its_own_cluster_only(
    house: House, server: ReadingServer, options: Any, here: list[str], why: str
) -> None:
    house.here = here
    with pytest.raises(NotAnswered, match=why):
        house.ask("topics", **options)


def test_the_address_comes_from_where_connect_takes_it(
    house: House, server: ReadingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    with pytest.raises(NotAnswered, match="serves the cluster"):
        house.ask("topics")
    monkeypatch.setenv("ESCROWMQ_RAY__ADDRESS", ADDRESS)
    assert house.ask("topics")
    file = tmp_path / "c.yaml"
    file.write_text("cluster: {namespace: other}\n")
    with pytest.raises(NotAnswered, match="namespace"):
        ask("auto", None, file, "topics", [], where=house.folders())
    assert (
        ClusterSettings().namespace,
        RaySettings().address,
    ) == (reading_client.NAMESPACE, reading_client.AUTO)


def test_without_one_the_command_asks_itself(house: House, where: Path) -> None:
    with pytest.raises(NotAnswered, match="no exporter or supervisor of this user has run here"):
        house.ask("topics")
    where.mkdir(mode=0o700)
    with pytest.raises(NotAnswered, match="no exporter or supervisor runs here"):
        house.ask("topics")


def test_a_service_without_a_login_and_a_shell_with_one_find_each_other(
    house: House, where: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = base / "shared" / f"escrowmq-{os.getuid()}"
    with ExitStack() as running:
        with monkeypatch.context() as service:
            service.delenv("XDG_RUNTIME_DIR")
            made = running.enter_context(house.serving())
        assert made.path.parent == shared
        assert house.ask("topics") == [info("orders", 2)], "a shell with a login"
    login = base / "no-logins" / str(os.getuid())
    login.mkdir(parents=True)
    with ExitStack() as running:
        with monkeypatch.context() as service:
            service.setenv("XDG_RUNTIME_DIR", str(login))
            made = running.enter_context(house.serving())
        assert made.path.parent == login / "escrowmq"
        assert house.ask("topics") == [info("orders", 2)], "a shell with another folder"
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert house.ask("topics") == [info("orders", 2)], "a service's own command, without a login"


def test_where_the_first_folder_cannot_be_used_it_listens_in_the_next(
    house: House, where: Path, base: Path
) -> None:
    where.mkdir(mode=0o755)
    with house.serving() as made:
        assert made.path.is_relative_to(base / "shared")
        assert house.ask("topics") == [info("orders", 2)]


@contextlib.contextmanager
def stopped(where: Path, number: int) -> Iterator[socket.socket]:
    """A socket on which a stopped process listens: it takes connections and questions, and never answers."""
    where.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(where / f"exporter-{number}.sock"))
        silent.listen(1)
        yield silent


def test_stopped_ones_cost_one_wait_together(house: House, where: Path) -> None:
    """Each of them had its own five seconds."""
    with stopped(where, 1), stopped(where, 2), stopped(where, 3):
        began = time.monotonic()
        with pytest.raises(NotAnswered, match="timed out"):
            house.ask("topics", taken_s=0.2)
    assert time.monotonic() - began < reading_client.WAIT_S


def test_a_stopped_one_hides_no_other(house: House, server: ReadingServer) -> None:
    with stopped(server.path.parent, 0) as silent:
        assert house.ask("topics", taken_each_s=0.2) == [info("orders", 2)]
        Path(silent.getsockname()).unlink()


class Slow(Admin):
    """It answers after ``hold``, or after this time."""

    def __init__(self, wait_s: float) -> None:
        self.hold, self.begun, self._wait_s = threading.Event(), threading.Semaphore(0), wait_s

    def topics(self) -> list[TopicInfo]:
        self.begun.release()
        self.hold.wait(self._wait_s)
        return []


def test_one_that_works_on_the_answer_is_waited_for(house: House) -> None:
    with house.serving(Slow(1.0)):
        assert house.ask("topics", taken_s=0.5) == []


def test_sockets_that_were_left_behind_hide_no_other(house: House, server: ReadingServer) -> None:
    for number in range(2 * reading_client.SOCKETS_MAX):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(server.path.parent / f"a-{number}.sock"))
    try:
        assert house.ask("topics") == [info("orders", 2)]
    finally:
        for path in server.path.parent.glob("a-*.sock"):
            path.unlink()


def test_one_that_talks_nonsense_is_left_alone(house: House, where: Path) -> None:
    def talk(silent: socket.socket) -> None:
        link, _ = silent.accept()
        with link:
            receive(link, 1 << 16)
            send(link, "what?")

    with stopped(where, 1) as talker:
        talking = threading.Thread(target=talk, args=(talker,))
        talking.start()
        with pytest.raises(NotAnswered):
            house.ask("topics")
        talking.join(10)


def test_a_folder_of_others_is_not_believed(house: House, where: Path, tmp_path: Path) -> None:
    where.mkdir(mode=0o755)
    assert not is_ours(where)
    with pytest.raises(ConfigError, match="chmod 700"):
        ReadingServer(FakeCluster(), "exporter", [where])  # type: ignore[arg-type]
    with pytest.raises(NotAnswered):
        house.ask("topics")
    where.chmod(0o700)
    assert is_ours(where)
    link = tmp_path / "link"
    link.symlink_to(where)
    assert not is_ours(link)


def test_another_user_is_sent_away(
    house: House, server: ReadingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_server, "same_user", lambda link: False)
    with pytest.raises(NotAnswered, match=r"closed the connection|Broken pipe|reset"):
        house.ask("topics")
    monkeypatch.undo()


def test_a_client_believes_no_other_user(
    house: House, server: ReadingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_client, "same_user", lambda link: False)
    with pytest.raises(NotAnswered, match="another user listens"):
        house.ask("topics")


def test_the_kernel_says_who_is_there() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert reading_client.same_user(ours)


def test_garbage_ends_nobody_but_its_sender(house: House, server: ReadingServer) -> None:
    for garbage in (b"", b"\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(5.0)
            link.connect(str(server.path))
            link.sendall(garbage)
            link.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(100) == b""
    assert house.ask("topics")


def test_a_question_that_is_none_is_left_to_the_command(server: ReadingServer) -> None:
    from escrowmq import __version__

    for question in (
        Question(__version__, "delete_topic", ["orders"], "escrowmq"),
        Question("0.0", "topics", [], "escrowmq"),
        Question(__version__, "topics", ["too", "many"], "escrowmq"),
    ):
        assert server.answer(question).not_mine is not None
    assert server.answer(Question(__version__, "topics", [], "escrowmq")) != Answer()


def test_more_than_a_few_at_a_time_are_sent_away(house: House) -> None:
    slow = Slow(10.0)
    with house.serving(slow), ThreadPoolExecutor(AT_A_TIME) as pool:
        for _ in range(AT_A_TIME):
            pool.submit(house.ask, "topics")
        for _ in range(AT_A_TIME):
            assert slow.begun.acquire(timeout=10)
        with pytest.raises(NotAnswered, match="busy"):
            house.ask("topics")
        slow.hold.set()


def test_one_that_cannot_take_a_command_takes_the_next(
    house: House, server: ReadingServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A moment without free file descriptors ended the thread, and every command waited for its time-out."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as early:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
        try:
            early.connect(str(server.path))
            wait_until(lambda: "Too many open files" in caplog.text, what="a failure")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert house.ask("topics") == [info("orders", 2)]


def test_one_without_a_thread_for_a_command_says_so_and_takes_the_next(
    house: House, server: ReadingServer
) -> None:
    """It disconnects before it has read all of this question, and its answer is read nevertheless."""
    threading.stack_size(1 << 47)  # more than there is
    try:
        for _ in range(AT_A_TIME + 1):
            with pytest.raises(NotAnswered, match="no thread"):
                house.ask("topic", "x" * (1 << 20))
    finally:
        threading.stack_size(0)
    assert house.ask("topics") == [info("orders", 2)], "its places are free again"


def test_one_that_is_being_ended_leaves_the_command_to_itself(house: House) -> None:
    class Ended(Admin):
        def topics(self) -> list[TopicInfo]:
            raise Closed

    with house.serving(Ended()), pytest.raises(NotAnswered, match="being ended"):
        house.ask("topics")


def test_a_socket_that_was_left_behind_is_removed(house: House, where: Path) -> None:
    where.mkdir(mode=0o700)
    dead = where / "exporter-0.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(dead))
    with house.serving():
        assert not dead.exists() and house.ask("topics")


def test_the_command_prefers_an_exporter(server: ReadingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And joins nothing then: there is no Ray at that address."""
    monkeypatch.setenv("RAY_ADDRESS", ADDRESS)
    for command in (
        "topic list", "group list", "group describe g", "txn list", "status", "settings", "members",
        "members changes", "node list", "rebalance plan",
    ):  # fmt: skip
        good(*command.split())
    assert run("group", "describe", "nobody").exit_code == 4


def test_a_command_that_only_reads_loads_no_ray(where: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from escrowmq.cluster.cli.app import app_for; app_for(['topic']);"
        "import escrowmq.cluster.reading_client;"
        "print([m for m in ('ray', 'pyspark', 'pydantic', 'rich.progress') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_each_command_is_loaded_by_its_name_alone() -> None:
    from typer.main import get_command

    from escrowmq.cluster.cli.app import app, app_for

    every = get_command(app).commands  # type: ignore[attr-defined]
    for name in every:
        alone = get_command(app_for([name, "--help"])).commands  # type: ignore[attr-defined]
        assert list(alone) == [name]
    assert list(get_command(app_for(["nosuch"])).commands) == list(every)  # type: ignore[attr-defined]
