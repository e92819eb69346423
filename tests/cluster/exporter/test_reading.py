"""Commands that only read, answered by an exporter of the same user over a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from escrowmq.actors.admin.types import ClusterStatus, GroupDescription, GroupPartition
from escrowmq.actors.client.consumer_groups import MemberDescription
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster import reading_client, reading_socket
from escrowmq.cluster.exporter import reading_server
from escrowmq.cluster.exporter.reading_server import ReadingServer
from escrowmq.cluster.look import Look
from escrowmq.cluster.reading_client import NoExporter, ask
from escrowmq.cluster.reading_socket import Answer, Question, is_ours, receive, send
from escrowmq.cluster.reads import READS
from escrowmq.cluster.settings import ClusterSettings, RaySettings
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


class Admin:
    """Of a cluster that has little."""

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


class FakeCluster:
    """What the server asks of a cluster."""

    def __init__(self) -> None:
        self.info, self.address, self.admin = ClusterInfo("c", "escrowmq", 1, 3), ADDRESS, Admin()

    def status(self) -> ClusterStatus:
        return ClusterStatus("c", ())

    def health(self) -> dict[str, Any]:
        return {"nodes": [{"node": "a"}], "replicas": []}


@pytest.fixture
def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in [name for name in os.environ if name.startswith("ESCROWMQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(reading_server, "running_here", lambda: [ADDRESS])
    return tmp_path / "escrowmq"


@pytest.fixture
def server(where: Path) -> Iterator[ReadingServer]:
    made = ReadingServer(FakeCluster())  # type: ignore[arg-type]
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
    look = asked("status")
    assert isinstance(look, Look) and look.found == ClusterStatus("c", ()) and look.well
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
    with pytest.raises(NoExporter, match=why):
        asked("topics", **options)


def test_the_address_comes_from_where_connect_takes_it(
    server: ReadingServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    with pytest.raises(NoExporter, match="serves the cluster"):
        asked("topics")
    monkeypatch.setenv("ESCROWMQ_RAY__ADDRESS", ADDRESS)
    assert asked("topics")
    file = tmp_path / "c.yaml"
    file.write_text("cluster: {namespace: other}\n")
    with pytest.raises(NoExporter, match="namespace"):
        ask("auto", None, file, "topics", [])
    assert (
        ClusterSettings().namespace,
        RaySettings().address,
    ) == (reading_client.NAMESPACE, reading_client.AUTO)


def test_without_one_the_command_asks_itself(where: Path) -> None:
    with pytest.raises(NoExporter, match="no exporter of this user has run here"):
        asked("topics")
    where.mkdir(mode=0o700)
    with pytest.raises(NoExporter, match="no exporter runs here"):
        asked("topics")


def test_one_that_hangs_or_talks_nonsense_is_left_alone(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_client, "WAIT_S", 0.3)
    where.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(where / "exporter-1.sock"))
        silent.listen(1)
        with pytest.raises(NoExporter, match="timed out"):
            asked("topics")

        def talk() -> None:
            silent.accept()[0].close()  # the one above
            link, _ = silent.accept()
            with link:
                receive(link, 1 << 16)
                send(link, "what?")

        talking = threading.Thread(target=talk)
        talking.start()
        with pytest.raises(NoExporter):
            asked("topics")
        talking.join(10)


def test_a_folder_of_others_is_not_believed(where: Path, tmp_path: Path) -> None:
    where.mkdir(mode=0o755)
    assert not is_ours(where)
    with pytest.raises(ConfigError, match="chmod 700"):
        ReadingServer(FakeCluster())  # type: ignore[arg-type]
    with pytest.raises(NoExporter):
        asked("topics")
    where.chmod(0o700)
    assert is_ours(where)
    link = tmp_path / "link"
    link.symlink_to(where)
    assert not is_ours(link)


def test_another_user_is_sent_away(server: ReadingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_server, "same_user", lambda link: False)
    with pytest.raises(NoExporter, match=r"closed the connection|Broken pipe|reset"):
        asked("topics")
    monkeypatch.undo()


def test_a_client_believes_no_other_user(server: ReadingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_client, "same_user", lambda link: False)
    with pytest.raises(NoExporter, match="another user listens"):
        asked("topics")


def test_the_kernel_says_who_is_there() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert reading_socket.same_user(ours)


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
    with pytest.raises(NoExporter, match="busy"):
        asked("topics")
    hold.set()
    for thread in threads:
        thread.join(10)


def test_one_that_cannot_take_a_command_takes_the_next(where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment without free file descriptors ended the thread, and every command waited for its time-out."""
    monkeypatch.setattr(reading_server, "RETRY_S", 0.01)
    made = ReadingServer(FakeCluster())  # type: ignore[arg-type]
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
            with pytest.raises(NoExporter, match="no thread"):
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
    with pytest.raises(NoExporter, match="being ended"):
        asked("topics")


def test_a_socket_that_was_left_behind_is_removed(where: Path) -> None:
    where.mkdir(mode=0o700)
    dead = where / "exporter-0.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(dead))
    server = ReadingServer(FakeCluster())  # type: ignore[arg-type]
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
    for command in ("topic list", "group list", "group describe g", "txn list", "status"):
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
