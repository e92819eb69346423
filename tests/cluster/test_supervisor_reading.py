"""When the supervisor answers commands that only read, and when it leaves them to join Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.cluster.reading_client import AUTO, NotAnswered, ask
from escrowmq.cluster.supervisor.reading_server import SupervisedCluster, SupervisorReading
from escrowmq.replication.errors import Closed

ADDRESS = "10.0.0.1:6379"


class Supervisor:
    """Its part that answers. ``made``: its clients, of a cluster without topics."""

    def __init__(self, where: Path) -> None:
        self.where, self.made = [where], list[Supervisor]()
        info = ClusterInfo("c", "escrowmq", 1, 3)
        self.cluster = SupervisedCluster(info, ADDRESS, dict, self._new_admin)
        self.reading = SupervisorReading(self.where, lambda: [ADDRESS])

    def begin(self, *, with_token: bool = False) -> None:
        self.reading.begin(self.cluster, with_token=with_token)

    def asked(self) -> Any:
        return ask(AUTO, None, None, "topics", [], where=self.where)

    def _new_admin(self, info: ClusterInfo) -> Admin:
        self.made.append(self)
        return cast(Admin, self)

    def topics(self) -> list[Any]:
        return []

    def close(self) -> None:
        self.made.remove(self)


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    for name in (
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        *(n for n in os.environ if n.startswith("ESCROWMQ_")),
    ):
        monkeypatch.delenv(name, raising=False)
    made = Supervisor(tmp_path / "sockets")
    yield made
    made.reading.close()
    assert not list(tmp_path.glob("*/*.sock")) and made.made == []


def test_it_answers_from_its_beginning_to_its_end(supervisor: Supervisor) -> None:
    supervisor.begin()
    assert supervisor.made == [], "no client before the first question"
    assert supervisor.asked() == [] and len(supervisor.made) == 1
    supervisor.reading.close()
    with pytest.raises(NotAnswered):
        supervisor.asked()


def test_where_ray_requires_its_token_a_command_must_have_it(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("correct\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    supervisor.begin(with_token=True)
    assert supervisor.asked() == []
    monkeypatch.setenv("RAY_AUTH_TOKEN", "correct")
    assert supervisor.asked() == [], "the token, given in another way"
    for name, value in (("RAY_AUTH_TOKEN", "wrong"), ("RAY_AUTH_MODE", "disabled")):
        with monkeypatch.context() as command:
            command.setenv(name, value)
            with pytest.raises(NotAnswered, match="with Ray's token only"):
                supervisor.asked()
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    (tmp_path / "token").unlink()
    with pytest.raises(NotAnswered, match="with Ray's token only"):
        supervisor.asked()


def test_a_supervisor_that_cannot_tell_the_token_answers_nobody(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "nowhere"))
    supervisor.begin(with_token=True)
    with pytest.raises(NotAnswered, match="has run here"):
        supervisor.asked()


def test_where_it_cannot_listen_the_cluster_runs_all_the_same(supervisor: Supervisor) -> None:
    (where,) = supervisor.where
    where.write_text("")
    supervisor.begin()
    with pytest.raises(NotAnswered):
        supervisor.asked()


def test_once_it_ends_a_question_makes_no_client(supervisor: Supervisor) -> None:
    supervisor.begin()
    supervisor.reading.close()
    with pytest.raises(Closed):
        supervisor.cluster.admin.topics()
