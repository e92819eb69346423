"""A cluster with everything switched on: Ray's token, the replicas' secret, TLS between them.

Commands with the token and the secret work; without the token they get nothing. Afterwards, no log, output,
command line or status contains the token, the secret or a private key.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]
BIN = Path(sys.executable).parent


@dataclass
class Hardened:
    """The running cluster, and everything that its commands have printed."""

    path: Path
    port: int
    token: str
    secret: str
    key: str
    env: dict[str, str]
    said: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def run(self, *words: str, expect: int = 0, text: str | None = None, **changes: str | None) -> str:
        """An ``escrowmq`` command's output. ``changes`` to its environment: None removes a variable."""
        env = {k: v for k, v in {**self.env, **changes}.items() if v is not None}
        done = subprocess.run(
            [BIN / "escrowmq", *words, "--address", self.address],
            env=env, input=text, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        self.said.append(done.stdout + done.stderr)
        assert done.returncode == expect, self.said[-1]
        return self.said[-1]

    def settled(self) -> dict[str, Any]:
        """What ``status`` says as soon as all is well: on a busy machine a leader may just be elected."""

        def found() -> dict[str, Any] | None:
            try:
                return dict(json.loads(self.run("status", "--format", "json")))
            except AssertionError:
                return None

        return wait_until(found, 60.0, "a cluster that is well", every_s=1.0) or {}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def start_head(words: list[str], env: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    """Run ``ray start``. Ray gives up after 30 s, sometimes too short on a busy machine: try again."""
    for _ in range(3):
        with output.open("wb") as out:
            head = subprocess.Popen(
                [BIN / "ray", *words], env=env, stdout=out, stderr=out, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while head.poll() is None and time.monotonic() < deadline:
            if "Ray runtime started" in output.read_text():
                return head
            time.sleep(0.1)
        os.killpg(head.pid, signal.SIGKILL)
        head.wait(20)
    raise AssertionError(output.read_text())


@pytest.fixture(scope="module")
def hardened() -> Iterator[Hardened]:
    path = Path(tempfile.mkdtemp(prefix="emq-h-", dir="/tmp"))
    token, secret, port = secrets.token_hex(32), secrets.token_hex(32), free_port()
    tls = Authority(path / "tls").issue("node")
    (path / "token").write_text(token)
    (path / "token").chmod(0o600)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "ESCROWMQ_"))} | {
        "HOME": str(path),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(path / "token"),
        "ESCROWMQ_SECURITY__SECRET": secret,
        "ESCROWMQ_SECURITY__TLS_CERT_FILE": str(tls.cert),
        "ESCROWMQ_SECURITY__TLS_KEY_FILE": str(tls.key),
        "ESCROWMQ_SECURITY__TLS_CA_FILE": str(tls.ca),
    }
    words = [
        "start", "--head", "--block", f"--port={port}", "--num-cpus=2", f"--temp-dir={path / 'ray'}",
        "--include-dashboard=false", "--disable-usage-stats",
    ]  # fmt: skip
    # Ray gets none of EscrowMQ's settings: the supervisor's plan carries them.
    rays = {k: v for k, v in env.items() if not k.startswith("ESCROWMQ_")}
    head = start_head(words, rays, path / "ray.out")
    cluster = Hardened(path, port, token, secret, tls.key.read_text().split("\n")[1], env)
    try:
        cluster.run("up", "--data-dir", str(path / "data"))
        yield cluster
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        try:
            head.wait(3)
        except subprocess.TimeoutExpired:
            pass
        for number in _left(path):
            os.kill(number, signal.SIGKILL)
        shutil.rmtree(path, ignore_errors=True)


def _left(path: Path) -> list[int]:
    """Processes with our directory on their command line."""
    return [number for number, words in _command_lines().items() if str(path).encode() in words]


def _command_lines() -> dict[int, bytes]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:  # it has just ended
                continue
    return found


def test_with_the_token_everything_works(hardened: Hardened) -> None:
    hardened.run("topic", "create", "greetings")
    hardened.run("produce", "greetings", text="hello\nworld\n")
    assert "world" in hardened.run("consume", "greetings", "--max", "2")
    assert '"role": "leader"' in json.dumps(hardened.settled())


@pytest.mark.parametrize(("command", "changes"), [
    ("consume greetings --max 1", {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN_PATH": None}),
    ("topic list", {"RAY_AUTH_TOKEN_PATH": None, "RAY_AUTH_TOKEN": "f" * 64}),
], ids=["no token", "another token, asking the supervisor first"])  # fmt: skip
def test_without_the_token_nobody_gets_anything_and_is_told_at_once(
    hardened: Hardened, command: str, changes: dict[str, str | None]
) -> None:
    started = time.monotonic()
    said = hardened.run(*command.split(), expect=2, **changes)
    assert time.monotonic() - started < 10, "Ray's own refusal takes 20 s"
    assert "token" in said
    assert "hello" not in said and "greetings" not in said


def test_the_replicas_talk_tls(hardened: Hardened) -> None:
    found = hardened.settled()
    addresses = {m for m in re.findall(r"\d+\.\d+\.\d+\.\d+:\d+", json.dumps(found)) if m != hardened.address}
    assert len(addresses) >= 3
    ports = {int(file.read_text()) for file in (hardened.path / "data").rglob("raft-port")}
    assert len(ports) == 3
    for address in addresses:
        host, port = address.split(":")
        if int(port) not in ports:
            continue
        ports.discard(int(port))
        with socket.create_connection((host, int(port)), timeout=5) as sock:
            sock.sendall(b"\x08\x00\x00\x00\x04\x00\x00\x00plain frame")
            answer = sock.recv(100)
        assert answer[:1] in (b"", b"\x15"), "anything but TLS's alert"
    assert not ports, "replicas that were not tried"


@pytest.mark.long
def test_the_secret_can_be_changed_while_the_cluster_is_down(hardened: Hardened) -> None:
    hardened.run("down")
    again = secrets.token_hex(32)
    said = hardened.run(
        "up", "--data-dir", str(hardened.path / "data"), expect=2, ESCROWMQ_SECURITY__SECRET=again
    )
    assert "founded with" in said
    (hardened.path / "data" / "cluster.json").unlink()
    hardened.run("up", "--adopt", "--data-dir", str(hardened.path / "data"), ESCROWMQ_SECURITY__SECRET=again)
    assert "world" in hardened.run("consume", "greetings", "--max", "2")


def test_no_secret_is_anywhere_but_where_it_was_put(hardened: Hardened) -> None:
    """Runs last, so that all tests above have written their logs."""
    hardened.settled()
    hardened.run("status", expect=2, ESCROWMQ_SECURITY__SECRET="short")
    hardened.run("status", expect=2, ESCROWMQ_SECURITY__SECRET_FILE=str(hardened.path / "token"))
    own = {hardened.path / "token", hardened.path / "tls" / "node.key"}
    assert all(file.is_file() for file in own), "what was put there is there"
    hidden = [hardened.token.encode(), hardened.secret.encode(), hardened.key.encode()]
    searched, found = 0, []
    for file in hardened.path.rglob("*"):
        if file.is_file() and not file.is_symlink() and file not in own:
            content = file.read_bytes()
            searched += 1
            found += [file for text in hidden if text in content]
    found += [text for text in hardened.said for h in hidden if h.decode() in text]  # type: ignore[misc]
    lines = _command_lines()
    found += [number for number, words in lines.items() if any(h in words for h in hidden)]  # type: ignore[misc]
    assert not found, found
    assert searched > 20 and len(lines) > 5, "there was nothing to search"
