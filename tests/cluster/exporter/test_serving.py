"""The exporter over HTTP: what it answers, when it is well, and what it refuses."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from escrowmq.cluster.exporter import serving
from escrowmq.cluster.exporter.exporter import Watching
from escrowmq.cluster.exporter.findings import Found
from escrowmq.cluster.exporter.serving import Server, parse_listen
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport
from escrowmq.replication.errors import ConfigError, Unavailable
from tests.support.waiting import wait_until

MEMBERS = {0: MembersReport(version=0, voters=[0, 1, 2])}


class Scripted:
    """Looks that find what the test says, at the time that it says."""

    def __init__(self) -> None:
        self.now, self.wall, self.leads, self.fails = 1_000.0, 5_000.0, True, False

    def look(self) -> Found:
        if self.fails:
            raise Unavailable("no look today", 1.0)
        role = "leader" if self.leads else "follower"
        report = ReplicaReport(gid=0, rid=0, role=role, ready=self.leads)
        return Found(self.wall, 0.1, MEMBERS, {(0, 0): report})


@pytest.fixture
def looks() -> Scripted:
    return Scripted()


@pytest.fixture
def server(looks: Scripted) -> Iterator[Server]:
    made = Server(Watching(looks, 5.0, clock=lambda: looks.now), "127.0.0.1", 0)
    made.start()
    yield made
    made.close()


def get(server: Server, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.address, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_it_is_well_while_its_looks_are_fresh(server: Server, looks: Scripted) -> None:
    assert get(server, "/healthz") == (503, "it has not looked yet\n")
    assert get(server, "/readyz")[0] == 503
    assert get(server, "/metrics") == (200, "")
    server.watching.look()
    assert get(server, "/healthz") == get(server, "/readyz") == (200, "ok\n")
    assert 'escrowmq_group_has_leader{group="0"} 1.0\n' in get(server, "/metrics")[1]
    looks.now += 16
    status, why = get(server, "/healthz")
    assert status == 503 and why.startswith("the last look ended 16 s ago")
    assert "escrowmq_exporter_last_look_timestamp_seconds 5000.0\n" in get(server, "/metrics")[1]


def test_a_group_without_a_leader_is_no_trouble_of_the_exporters(server: Server, looks: Scripted) -> None:
    looks.leads = False
    server.watching.look()
    assert get(server, "/healthz")[0] == 200
    assert get(server, "/readyz") == (503, "group 0 has no leader\n")


def test_a_look_that_fails_is_tried_again_and_told(looks: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    looks.fails = True
    watching = Watching(looks, 0.01, clock=lambda: looks.now)
    watching.start()
    wait_until(lambda: "no look today" in (watching.trouble() or ""), what="the reason")
    looks.fails = False
    wait_until(lambda: watching.trouble() is None, what="the next look")
    watching.close()
    assert "a look at the cluster failed" in caplog.text


def test_there_is_nothing_else_to_ask_for(server: Server) -> None:
    assert get(server, "/metrics/../secret")[0] == 404
    assert get(server, "/metrics", "POST")[0] == 501


def test_readers_that_say_nothing_keep_nobody_out_for_long(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving._Handler, "timeout", 0.5)
    host, port = server.server_address[:2]
    with ExitStack() as stack:
        for _ in range(serving.CONNECTIONS_MAX):
            stack.enter_context(socket.create_connection((str(host), port)))
        late = stack.enter_context(socket.create_connection((str(host), port), timeout=10))
        late.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionError):
            while late.recv(100):
                pass
            raise ConnectionError  # closed without an answer
        wait_until(lambda: _answers(server), what="a slot again")


def _answers(server: Server) -> bool:
    try:
        return get(server, "/healthz")[0] == 503
    except (ConnectionError, http.client.HTTPException):
        return False


def test_an_address_is_a_host_and_a_port(server: Server) -> None:
    assert parse_listen("0.0.0.0:9644") == ("0.0.0.0", 9644)
    assert parse_listen(":80") == ("127.0.0.1", 80)
    assert parse_listen("[::1]:80") == ("::1", 80)
    for wrong in ("9644", "host:", "host:http", "host:70000"):
        with pytest.raises(ConfigError, match="host:port"):
            parse_listen(wrong)
    with pytest.raises(ConfigError, match="cannot listen on"):
        Server(server.watching, *parse_listen(server.address))
