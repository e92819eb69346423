"""Spark's answers, computed in a separate process.

The job is in ``spark_integration``, a layer above this package, so it is started as a process and not
imported. Its JVM takes many seconds to start, so it is started early and told later when to read.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import subprocess
import sys
import threading
from collections.abc import MutableMapping
from pathlib import Path

from escrowmq.cluster.demo.events import DemoFailed
from escrowmq.cluster.demo.queries import QueryAnswer
from escrowmq.replication.errors import JavaNotFound

#: RayDP needs 15 to 50 s to start on two cores.
START_TIMEOUT_S = 150.0
ANSWER_TIMEOUT_S = 150.0
END_TIMEOUT_S = 20.0
JAVA_TIMEOUT_S = 60.0


def prepare_java(environ: MutableMapping[str, str] | None = None) -> None:
    """Set the variables by which Ray and Spark find Java. Call it before Ray starts. Raises JavaNotFound."""
    command = [sys.executable, "-m", "escrowmq.spark_integration.java"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False)
    if run.returncode != 0:
        raise JavaNotFound(run.stderr.strip())
    for line in run.stdout.splitlines():
        _, setting = shlex.split(line)
        name, _, value = setting.partition("=")
        (os.environ if environ is None else environ)[name] = value


class SparkStep:
    """A Spark process. It starts in the background; :meth:`answers` tells it to read."""

    def __init__(self, address: str, namespace: str, directory: Path) -> None:
        self._output, self._log = directory / "spark-answers.json", directory / "spark.log"
        settings = json.dumps({"address": address, "namespace": namespace, "output": str(self._output)})
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "escrowmq.spark_integration.demo_answers", settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_until_ready(self) -> None:
        """Wait until the Spark session is up. Raises DemoFailed."""
        self._expect("ready", START_TIMEOUT_S)

    def answers(self) -> dict[str, QueryAnswer]:
        """The answer to every question, by title, over all messages committed now. Raises DemoFailed."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self._expect("done", ANSWER_TIMEOUT_S)
        found = json.loads(self._output.read_text())
        return {title: (columns, rows) for title, (columns, rows) in found.items()}

    def stop(self) -> None:
        """End the process; kill it if it does not end in time."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _expect(self, word: str, timeout_s: float) -> None:
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise DemoFailed(f"Spark was not {word} after {timeout_s:g} s; see {self._log}") from None
        if line != word:
            tail = "\n".join(self._log.read_text().splitlines()[-5:])
            raise DemoFailed(f"Spark failed; see {self._log}: {tail}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() in ("ready", "done"):
                self._lines.put(line.strip())
        self._lines.put("ended")
