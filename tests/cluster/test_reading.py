"""Commands that only read, answered by an exporter or supervisor of the same user over a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
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
    is_ours,
    receive,
    send,
)
from escrowmq.cluster.settings import ClusterSettings, RaySettings
from escrowmq.cluster.supervisor import reading_server
from escrowmq.cluster.supervisor.reading_server import ReadingServer
from escrowmq.replication.errors import Closed, ConfigError, Unavailable, UnknownGroup
from escrowmq.replication.model import OpenTransaction, TopicInfo
from tests.support.places import info

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

    def __init__(self) -> None:
        self.info, self.address, self.admin = ClusterInfo("c", "escrowmq", 1, 3), ADDRESS, Admin()

    def health(self) -> dict[str, Any]:
        return {"nodes": [{"node": "a"}], "replicas": []}


@pytest.fixture
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: that of a Unix socket has at most 107 characters."""
    return tmp_path_factory.mktemp("s")


@pytest.fixture
def where(base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.setattr(reading_client, "LOGINS", base / "no-logins")
    monkeypatch.setattr(reading_client, "SHARED", base / "shared")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in [name for name in os.environ if name.startswith("ESCROWMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(reading_server, "running_here", lambda: [ADDRESS])
    return base / "escrowmq"


@pytest.fixture
def server(where: Path) -> Iterator[ReadingServer]:
    made = ReadingServer(FakeCluster(), "exporter")  # type: ignore[arg-type]
    made.start()
    yield made
    made.close()
    assert list(where.iterdir()) == []


def asked(read: str, *arguments: Any, address: str = "auto", namespace: str | None = None) -> Any:
    return ask(address, namespace, None, read, list(arguments))


def test_answers_are_what_they_were(server: ReadingServer) -> None:
    assert asked("topics") == [info("orders", 2)]
    assert asked("groups") == [GROUP]
    assert asked("group", "g", address=ADDRESS) == GROUP
    assert asked("transactions", None, None, None, 10) == [TRANSACTION]
    assert asked("members") == MEMBERS and asked("settings") == {"remember_ids_s": 1}
    assert asked("changes")[0].learners == (2,) and asked("nodes")[0].head
    assert asked("rebalance")[0].to_node == "b"
    look = asked("status")
    assert isinstance(look, StatusSnapshot) and look.found == ClusterStatus("c", ()) and look.well
    assert (look.health["nodes"], look.address, look.namespace) == ([{"node": "a"}], ADDRESS, "escrowmq")


def test_errors_of_the_cluster_are_errors_here(server: ReadingServer) -> None:
    with pytest.raises(UnknownGroup, match="unknown consumer group 'nobody'"):
        asked("group", "nobody")
    with pytest.raises(Unavailable, match="no leader for orders") as caught:
        asked("topic", "orders")
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
    server: ReadingServer, monkeypatch: pytest.MonkeyPatch, options: Any, here: list[str], why: str
) -> None:
    monkeypatch.setattr(reading_server, "running_here", lambda: here)
    with pytest.raises(NotAnswered, match=why):
        asked("topics", **options)


def test_the_address_comes_from_where_connect_takes_it(
    server: ReadingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    with pytest.raises(NotAnswered, match="serves the cluster"):
        asked("topics")
    monkeypatch.setenv("ESCROWMQ_RAY__ADDRESS", ADDRESS)
    assert asked("topics")
    file = tmp_path / "c.yaml"
    file.write_text("cluster: {namespace: other}\n")
    with pytest.raises(NotAnswered, match="namespace"):
        ask("auto", None, file, "topics", [])
    assert (
        ClusterSettings().namespace,
        RaySettings().address,
    ) == (reading_client.NAMESPACE, reading_client.AUTO)


def test_without_one_the_command_asks_itself(where: Path) -> None:
    with pytest.raises(NotAnswered, match="no exporter or supervisor of this user has run here"):
        asked("topics")
    where.mkdir(mode=0o700)
    with pytest.raises(NotAnswered, match="no exporter or supervisor runs here"):
        asked("topics")


def test_a_service_without_a_login_and_a_shell_with_one_find_each_other(
    where: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = base / "shared" / f"escrowmq-{os.getuid()}"
    with monkeypatch.context() as service:
        service.delenv("XDG_RUNTIME_DIR")
        made = ReadingServer(FakeCluster(), "exporter")  # type: ignore[arg-type]
    made.start()
    try:
        assert made.path.parent == shared
        assert asked("topics") == [info("orders", 2)], "a shell with a login"
    finally:
        made.close()
    login = base / "no-logins" / str(os.getuid())
    login.mkdir(parents=True)
    with monkeypatch.context() as service:
        service.setenv("XDG_RUNTIME_DIR", str(login))
        made = ReadingServer(FakeCluster(), "exporter")  # type: ignore[arg-type]
    made.start()
    try:
        assert made.path.parent == login / "escrowmq"
        assert asked("topics") == [info("orders", 2)], "a shell with another folder"
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert asked("topics") == [info("orders", 2)], "a service's own command, without a login"
    finally:
        made.close()


def test_where_the_first_folder_cannot_be_used_it_listens_in_the_next(where: Path, base: Path) -> None:
    where.mkdir(mode=0o755)
    made = ReadingServer(FakeCluster(), "exporter")  # type: ignore[arg-type]
    made.start()
    try:
        assert made.path.is_relative_to(base / "shared")
        assert asked("topics") == [info("orders", 2)]
    finally:
        made.close()


@contextlib.contextmanager
def stopped(where: Path, number: int) -> Iterator[socket.socket]:
    """A socket on which a stopped process listens: it takes connections and questions, and never answers."""
    where.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(where / f"exporter-{number}.sock"))
        silent.listen(1)
        yield silent


def test_stopped_ones_cost_one_wait_together(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them had its own five seconds."""
    monkeypatch.setattr(reading_client, "TAKEN_S", 0.2)
    with stopped(where, 1), stopped(where, 2), stopped(where, 3):
        began = time.monotonic()
        with pytest.raises(NotAnswered, match="timed out"):
            asked("topics")
    assert time.monotonic() - began < reading_client.WAIT_S


def test_a_stopped_one_hides_no_other(server: ReadingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_client, "TAKEN_EACH_S", 0.2)
    with stopped(server.path.parent, 0) as silent:
        assert asked("topics") == [info("orders", 2)]
        Path(silent.getsockname()).unlink()


@pytest.mark.parametrize("planted", [False, True], ids=["", "planted: a question is not acknowledged"])
def test_one_that_works_on_the_answer_is_waited_for(
    server: ReadingServer, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    monkeypatch.setattr(reading_client, "TAKEN_S", 1.0)

    def slow(self: Admin) -> list[TopicInfo]:
        time.sleep(2 * reading_client.TAKEN_S)
        return []

    monkeypatch.setattr(Admin, "topics", slow)
    if planted:
        monkeypatch.setattr(reading_server, "send_packed", lambda link, packed: None)
        with pytest.raises(NotAnswered, match="timed out"):
            asked("topics")
    else:
        assert asked("topics") == []


def test_sockets_that_were_left_behind_hide_no_other(server: ReadingServer) -> None:
    for number in range(2 * reading_client.SOCKETS_MAX):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(str(server.path.parent / f"a-{number}.sock"))
    try:
        assert asked("topics") == [info("orders", 2)]
    finally:
        for path in server.path.parent.glob("a-*.sock"):
            path.unlink()


def test_one_that_talks_nonsense_is_left_alone(where: Path) -> None:
    def talk(silent: socket.socket) -> None:
        link, _ = silent.accept()
        with link:
            receive(link, 1 << 16)
            send(link, "what?")

    with stopped(where, 1) as talker:
        talking = threading.Thread(target=talk, args=(talker,))
        talking.start()
        with pytest.raises(NotAnswered):
            asked("topics")
        talking.join(10)


def test_a_folder_of_others_is_not_believed(where: Path, tmp_path: Path) -> None:
    where.mkdir(mode=0o755)
    assert not is_ours(where)
    with pytest.raises(ConfigError, match="chmod 700"):
        ReadingServer(FakeCluster(), "exporter", where)  # type: ignore[arg-type]
    with pytest.raises(NotAnswered):
        asked("topics")
    where.chmod(0o700)
    assert is_ours(where)
    link = tmp_path / "link"
    link.symlink_to(where)
    assert not is_ours(link)


def test_another_user_is_sent_away(server: ReadingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_server, "same_user", lambda link: False)
    with pytest.raises(NotAnswered, match=r"closed the connection|Broken pipe|reset"):
        asked("topics")
    monkeypatch.undo()


def test_a_client_believes_no_other_user(server: ReadingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_client, "same_user", lambda link: False)
    with pytest.raises(NotAnswered, match="another user listens"):
        asked("topics")


def test_the_kernel_says_who_is_there() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert reading_client.same_user(ours)


def test_garbage_ends_nobody_but_its_sender(server: ReadingServer) -> None:
    for garbage in (b"", b"\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"GET / HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(5.0)
            link.connect(str(server.path))
            link.sendall(garbage)
            link.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(100) == b""
    assert asked("topics")


def test_a_question_that_is_none_is_left_to_the_command(server: ReadingServer) -> None:
    from escrowmq import __version__

    for question in (
        Question(__version__, "delete_topic", ["orders"], "escrowmq"),
        Question("0.0", "topics", [], "escrowmq"),
        Question(__version__, "topics", ["too", "many"], "escrowmq"),
    ):
        assert server.answer(question).not_mine is not None
    assert server.answer(Question(__version__, "topics", [], "escrowmq")) != Answer()


def test_more_than_a_few_at_a_time_are_sent_away(
    server: ReadingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, held = threading.Event(), threading.Semaphore(0)

    def slow(self: Admin) -> list[TopicInfo]:
        held.release()
        hold.wait(10)
        return []

    monkeypatch.setattr(Admin, "topics", slow)
    threads = [threading.Thread(target=asked, args=("topics",)) for _ in range(reading_server.AT_A_TIME)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert held.acquire(timeout=10)
    with pytest.raises(NotAnswered, match="busy"):
        asked("topics")
    hold.set()
    for thread in threads:
        thread.join(10)


def test_one_that_cannot_take_a_command_takes_the_next(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment without free file descriptors ended the thread, and every command waited for its time-out."""
    monkeypatch.setattr(reading_server, "RETRY_S", 0.01)
    made = ReadingServer(FakeCluster(), "exporter")  # type: ignore[arg-type]
    listener, failures = made._listener, [OSError(errno.EMFILE, "too many open files")]

    class Failing:
        def accept(self) -> tuple[socket.socket, Any]:
            if failures:
                raise failures.pop()
            return listener.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    made._listener = Failing()  # type: ignore[assignment]
    made.start()
    try:
        assert asked("topics") == [info("orders", 2)]
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_thread)
            patch.setattr(reading_client, "send", _send_late)
            with pytest.raises(NotAnswered, match="no thread"):
                asked("topics")
        assert asked("topics") == [info("orders", 2)], "its place is free again"
    finally:
        made.close()


def _send_late(link: socket.socket, message: msgspec.Struct) -> None:
    """Only once the exporter has refused and disconnected."""
    select.select([link], [], [], 5.0)
    send(link, message)


def _no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_one_that_is_being_ended_leaves_the_command_to_itself(server: ReadingServer) -> None:
    def closed() -> None:
        raise Closed

    server._cluster.admin.topics = closed  # type: ignore[method-assign, assignment]
    with pytest.raises(NotAnswered, match="being ended"):
        asked("topics")


def test_a_socket_that_was_left_behind_is_removed(where: Path) -> None:
    where.mkdir(mode=0o700)
    dead = where / "exporter-0.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(dead))
    server = ReadingServer(FakeCluster(), "exporter")  # type: ignore[arg-type]
    assert not dead.exists()
    server.start()
    assert asked("topics")
    server.close()


def test_the_command_prefers_an_exporter(server: ReadingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And joins nothing then."""
    from typer.testing import CliRunner

    from escrowmq.cluster.cli.app import app
    from escrowmq.cluster.cli.options import ConnectionOptions

    joined = []
    monkeypatch.setattr(ConnectionOptions, "joined", lambda self: joined.append(self))
    for command in (
        "topic list", "group list", "group describe g", "txn list", "status", "settings", "members",
        "members changes", "node list", "rebalance plan",
    ):  # fmt: skip
        done = CliRunner().invoke(app, command.split())
        assert done.exit_code == 0, done.output
    assert joined == []
    assert CliRunner().invoke(app, ["group", "describe", "nobody"]).exit_code == 4


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
