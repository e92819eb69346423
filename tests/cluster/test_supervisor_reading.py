"""When the supervisor answers commands that only read, and when it leaves them to join Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster import reading_client
from escrowmq.cluster.reading_client import NotAnswered, ask
from escrowmq.cluster.supervisor import reading_server
from escrowmq.cluster.supervisor.reading_server import SupervisorReading
from escrowmq.replication.errors import Closed

ADDRESS = "10.0.0.1:6379"


class Context:
    gcs_address = ADDRESS


class Admin:
    """The admin of a cluster without topics."""

    made: ClassVar[list[Admin]] = []

    def __init__(self, info: ClusterInfo) -> None:
        Admin.made.append(self)

    def topics(self) -> list[Any]:
        return []

    def close(self) -> None:
        Admin.made.remove(self)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(reading_client, "LOGINS", tmp_path / "no-logins")
    monkeypatch.setattr(reading_client, "SHARED", tmp_path)
    monkeypatch.setattr(reading_server, "running_here", lambda: [ADDRESS])
    monkeypatch.setattr(reading_server.ray, "get_runtime_context", Context)
    monkeypatch.setattr(reading_server, "Admin", Admin)
    monkeypatch.setattr(reading_server, "is_token_auth_enabled", lambda: False)
    for name in (
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        *(n for n in os.environ if n.startswith("ESCROWMQ_")),
    ):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    assert not list(tmp_path.glob("*/*.sock")) and Admin.made == []


def topics() -> Any:
    return ask(reading_client.AUTO, None, None, "topics", [])


def test_it_answers_from_its_beginning_to_its_end(here: Path) -> None:
    reading = SupervisorReading()
    reading.begin(ClusterInfo("c", "escrowmq", 1, 3), dict)
    assert Admin.made == [], "no client before the first question"
    try:
        assert topics() == [] and len(Admin.made) == 1
    finally:
        reading.close()
    reading.close()
    with pytest.raises(NotAnswered):
        topics()


def test_where_ray_requires_its_token_a_command_must_have_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "token").write_text("correct\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(here / "token"))
    monkeypatch.setattr(reading_server, "is_token_auth_enabled", lambda: True)
    reading = SupervisorReading()
    reading.begin(ClusterInfo("c", "escrowmq", 1, 3), dict)
    try:
        assert topics() == []
        monkeypatch.setenv("RAY_AUTH_TOKEN", "correct")
        assert topics() == [], "the token, given in another way"
        for name, value in (("RAY_AUTH_TOKEN", "wrong"), ("RAY_AUTH_MODE", "disabled")):
            with monkeypatch.context() as command:
                command.setenv(name, value)
                with pytest.raises(NotAnswered, match="with Ray's token only"):
                    topics()
        monkeypatch.delenv("RAY_AUTH_TOKEN")
        (here / "token").unlink()
        with pytest.raises(NotAnswered, match="with Ray's token only"):
            topics()
    finally:
        reading.close()


def test_a_supervisor_that_cannot_tell_the_token_answers_nobody(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(here / "nowhere"))
    monkeypatch.setattr(reading_server, "is_token_auth_enabled", lambda: True)
    reading = SupervisorReading()
    reading.begin(ClusterInfo("c", "escrowmq", 1, 3), dict)
    with pytest.raises(NotAnswered, match="has run here"):
        topics()
    reading.close()


def test_where_it_cannot_listen_the_cluster_runs_all_the_same(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(reading_client, "SHARED", here / "file")
    (here / "file").write_text("")
    reading = SupervisorReading()
    reading.begin(ClusterInfo("c", "escrowmq", 1, 3), dict)
    with pytest.raises(NotAnswered):
        topics()
    reading.close()


def test_once_it_ends_a_question_makes_no_client(here: Path) -> None:
    reading = SupervisorReading()
    reading.begin(ClusterInfo("c", "escrowmq", 1, 3), dict)
    cluster = reading._cluster
    reading.close()
    assert cluster is not None
    with pytest.raises(Closed):
        cluster.admin.topics()
