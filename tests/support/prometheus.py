"""A real Prometheus and its promtool, as Debian packages them; fetched as the databases' servers are."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.database_servers import PROGRAM, NoServer, _dies_with_the_tests, free_port, programs
from tests.support.waiting import wait_until

PROMTOOL_S = 60.0


def promtool(*arguments: str | Path) -> str:
    """What it says; raises AssertionError with it if it is not content."""
    tool = programs("prometheus") / PROGRAM["prometheus"]
    done = subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, timeout=PROMTOOL_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """One that answers."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str) -> Any:
        """The data of an answer of its API."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def state_of(self, alert: str) -> str:
        """``pending``, ``firing``, or ``""``."""
        states = [a["state"] for a in self.get("alerts")["alerts"] if a["labels"]["alertname"] == alert]
        return max(states, default="", key=("", "pending", "firing").index)


@contextlib.contextmanager
def scraping(target: str, rules: str) -> Iterator[Prometheus]:
    """A Prometheus that scrapes ``target`` (host:port) and evaluates ``rules`` every half second."""
    tree, port = programs("prometheus"), free_port()
    with tempfile.TemporaryDirectory(prefix="escrowmq-prometheus-") as name:
        folder = Path(name)
        (folder / "rules.yml").write_text(rules)
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "escrowmq", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    tree / "usr/bin/prometheus", f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log, stderr=log, cwd=folder, preexec_fn=_dies_with_the_tests,
            )  # fmt: skip
            try:
                made = Prometheus(port)
                wait_until(lambda: _answers(made, process, folder), 30.0, "Prometheus")
                yield made
            finally:
                process.kill()
                process.wait()


def _answers(made: Prometheus, process: subprocess.Popen[bytes], folder: Path) -> bool:
    if process.poll() is not None:
        raise NoServer(f"Prometheus does not start: {(folder / 'log').read_text()[-1500:]}")
    try:
        return bool(made.get("rules")["groups"])
    except OSError:
        return False
