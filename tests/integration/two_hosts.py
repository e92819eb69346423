"""A Spark cluster of two hosts on one machine, on two of its loopback addresses, as a factory of sessions.

Spark does not start a second attempt of a task on the host of the first, and all Workers of a machine are on
one host for it. So this starts Spark's own Master and two Workers, each Worker with its own address.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from escrowmq.spark_integration import SessionRequest, provide_java
from escrowmq.spark_integration.session.request import QUICK_JVM, wait_for_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOSTS = ("127.0.0.1", "127.0.0.2")
PATIENCE_S = 120.0


@contextmanager
def two_hosts(directory: Path) -> Iterator[Callable[[SessionRequest], SparkSession]]:
    """A factory for ``spark_session(mode=...)`` with two executors. Stop the session before this ends."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        master = _daemon(directory, "master.Master", ["--host", HOSTS[0], "--port", "0"], started)
        url = _said(directory / "master.Master-0", master, "Starting Spark master at ")
        for host in HOSTS:
            size = ["--cores", "1", "--memory", "700m", "--work-dir", str(directory / host)]
            _daemon(directory, "worker.Worker", ["--host", host, *size, url], started)
        yield lambda request: _session(url, request)
    finally:
        for process in started:
            for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                each.kill()
            process.wait()


def _daemon(
    directory: Path, name: str, arguments: list[str], started: list[subprocess.Popen[bytes]]
) -> subprocess.Popen[bytes]:
    import pyspark

    home = Path(pyspark.__file__).parent
    quick = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM}
    environment = {**os.environ, "SPARK_HOME": str(home), **quick}
    provide_java(environment)
    command = [f"{home}/bin/spark-class", f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
    log: IO[bytes]
    with (directory / f"{name}-{len(started)}").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=directory, env=environment
        )
    started.append(process)
    return process


def _said(log: Path, process: subprocess.Popen[bytes], after: str) -> str:
    """The word that follows ``after`` in a daemon's log."""
    deadline = time.monotonic() + PATIENCE_S
    while after not in (text := log.read_text()):
        assert process.poll() is None and time.monotonic() < deadline, text[-3000:]
        time.sleep(0.2)
    return text.split(after)[1].split()[0]


def _session(url: str, request: SessionRequest) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(url).appName(request.app_name)
    settings = {
        "spark.driver.host": HOSTS[0],
        "spark.driver.bindAddress": HOSTS[0],
        "spark.executor.cores": "1",
        "spark.executor.memory": f"{request.memory_bytes >> 20}m",
        **request.configs,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    wait_for_executors(spark, request.executors)
    return spark
