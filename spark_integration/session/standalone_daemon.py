"""One JVM of a Spark standalone cluster, Master or Worker, which a Ray actor keeps running.

This is a plain class; ``standalone`` makes an actor of it. Spark's own script starts the JVM. All ports are
chosen freely, so the JVM's log says when it is ready and where it listens. A JVM that ends is restarted; the
Master gets the same port and its previous state, so that running applications find it again.

The JVM cannot outlive the actor's process (``tether``), and executors cannot outlive their Worker, which they
watch. So when the driver, the node or Ray ends, all these processes end. Only logs are kept, in the directory
of Ray's session.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ray

from escrowmq.replication.errors import ConfigError, EscrowMQError, Unavailable
from escrowmq.spark_integration.java import provide_java
from escrowmq.spark_integration.session.driver_jvm import child_pids, runs

MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
#: The main class of an executor.
EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+:(\d+))")
_WORKER_URL = re.compile(r"Successfully registered with master (spark://\S+:(\d+))")

#: The Worker tells its executors to end; processes that have not ended after this time are killed.
STOP_TIMEOUT_S = 5.0
#: Limit of restarts in a row. A JVM that ran longer than LIVED_WELL_S resets the count.
RESTARTS_MAX, LIVED_WELL_S, PAUSE_S = 10, 60.0, 1.0
_ASK_EVERY_S = 0.05

#: Master and Worker only distribute work. With the simple compiler and collector they start in half the time.
_DAEMON_MEMORY, _DAEMON_OPTIONS = "256m", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
#: Executors use the same log configuration as their Worker.
_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
"""


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """What to run. ``master_url``: empty for the Master itself."""

    session: str
    spark_version: str
    secret: str
    master_url: str = ""
    cores: int = 0
    memory_mib: int = 0


class SparkDaemon:
    """Runs a JVM from its construction until :meth:`stop` or the end of its process."""

    def __init__(self, spec: DaemonSpec) -> None:
        self._spec = spec
        self._name = "worker" if spec.master_url else "master"
        self._host = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        self._directory = (
            _session_directory() / "escrowmq-spark" / spec.session / f"{self._name}-{os.getpid()}"
        )
        self._log = self._directory / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = self._port = 0
        self._failure: EscrowMQError | None = None
        self._stopping = threading.Event()
        # The kernel ends the JVM with the thread that started it, so this thread does nothing else.
        self._keeper = threading.Thread(target=self._keep, name="spark-daemon", daemon=True)
        self._keeper.start()

    def ready(self, timeout_s: float) -> str:
        """Wait until the JVM is ready; returns the Master's URL.

        Raises JavaNotFound, ConfigError, Unavailable.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._failure is not None:
                raise self._failure
            found = (_WORKER_URL if self._spec.master_url else _MASTER_URL).search(self._said())
            if found is not None:
                self._port = int(found.group(2))
                return found.group(1)
            time.sleep(_ASK_EVERY_S)
        raise Unavailable(f"Spark's {self._name} on {self._host} was not ready in {timeout_s:.0f} s", 5.0)

    def pid(self) -> int:
        """Process id of the JVM on its node; 0 while none is running."""
        process = self._process
        return 0 if process is None or process.poll() is not None else process.pid

    def executors(self) -> int:
        """The number of this Worker's executors, told by their main class from its other children."""
        pid = self.pid()
        return sum(runs(child, EXECUTOR) for child in child_pids(pid)) if pid else 0

    def stop(self) -> None:
        """End the JVM with its executors, and remove their files, except the logs."""
        self._stopping.set()
        process = self._process
        if process is not None:
            _end(process)
        self._keeper.join(STOP_TIMEOUT_S)
        for part in ("local", "recovery"):
            shutil.rmtree(self._directory / part, ignore_errors=True)

    def _keep(self) -> None:
        restarts = 0
        try:
            environment = self._prepare()
            while not self._stopping.is_set():
                began = time.monotonic()
                self._run(environment)
                restarts = 0 if time.monotonic() - began > LIVED_WELL_S else restarts + 1
                if restarts > RESTARTS_MAX or (self._name == "master" and not self._port):
                    last = " | ".join(self._said().splitlines()[-3:])
                    raise Unavailable(f"Spark's {self._name} ended (log: {self._log}): {last}", 5.0)
                self._stopping.wait(PAUSE_S)
        except EscrowMQError as error:
            self._failure = error
        except OSError as error:
            self._failure = Unavailable(f"Spark's {self._name} cannot run on {self._host}: {error}", 5.0)

    def _prepare(self) -> dict[str, str]:
        """Create the JVM's directories and configuration; returns its environment."""
        import pyspark

        if pyspark.__version__ != self._spec.spark_version:
            raise ConfigError(
                f"node {self._host} has pyspark {pyspark.__version__}, but the driver has "
                f"{self._spec.spark_version}; install the same version on every node"
            )
        self._directory.mkdir(parents=True, mode=0o700)
        conf = self._directory / "conf"
        conf.mkdir()
        (conf / "log4j2.properties").write_text(_LOG4J)
        (conf / "spark-defaults.conf").write_text(
            "spark.authenticate true\n"
            "spark.ui.killEnabled false\n"
            "spark.deploy.recoveryMode FILESYSTEM\n"
            f"spark.deploy.recoveryDirectory {self._directory / 'recovery'}\n"
        )
        environment = daemon_environment(
            os.environ,
            home=Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent)),
            conf=conf,
            local=self._directory / "local",
            host=self._host,
            secret=self._spec.secret,
        )
        provide_java(environment)
        extra = missing_python_path(environment)
        if extra:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (extra, environment.get("PYTHONPATH"))))
        return environment

    def _run(self, environment: Mapping[str, str]) -> None:
        """Start the JVM and wait for its end."""
        tether = Path(__file__).with_name("parent_death.py")
        command = [sys.executable, str(tether), str(os.getpid()), *self._command(environment["SPARK_HOME"])]
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a new process group, by which executors are found
            )
        if self._stopping.is_set():
            _end(self._process)
        self._process.wait()

    def _command(self, home: str) -> list[str]:
        spec, common = self._spec, ["--host", self._host, "--webui-port", "0"]
        start = f"{home}/bin/spark-class"
        if not spec.master_url:
            return [start, MASTER, *common, "--port", str(self._port)]
        size = ["--cores", str(spec.cores), "--memory", f"{spec.memory_mib}m"]
        work = ["--work-dir", str(self._directory / "work")]
        return [start, WORKER, *common, "--port", "0", *size, *work, spec.master_url]

    def _said(self) -> str:
        """The log of the present JVM; a daemon logs a few lines for each application."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._log_start)
                return log.read(1 << 20).decode(errors="replace")
        except FileNotFoundError:
            return ""


def daemon_environment(
    base: Mapping[str, str], *, home: Path, conf: Path, local: Path, host: str, secret: str
) -> dict[str, str]:
    """Environment of a daemon: the node's variables without those that configure other Spark clusters."""
    kept = {name: value for name, value in base.items() if not name.startswith("SPARK_")}
    return {
        **kept,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": host,
        # Directory of shuffle files. If the node has a special disk for them, it sets this variable.
        "SPARK_LOCAL_DIRS": base.get("SPARK_LOCAL_DIRS", str(local)),
        "SPARK_DAEMON_MEMORY": _DAEMON_MEMORY,
        "SPARK_DAEMON_JAVA_OPTS": _DAEMON_OPTIONS,
        # In the environment, because every user of the node can read the arguments.
        "_SPARK_AUTH_SECRET": secret,
    }


def missing_python_path(environment: Mapping[str, str]) -> str:
    """The directory needed for ``import escrowmq`` in Spark's Python workers; "" if none is needed."""
    import escrowmq

    tried = subprocess.run(
        [sys.executable, "-c", "import escrowmq"], env=environment, cwd="/", capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else str(Path(escrowmq.__file__).parent.parent)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the JVM to end, then kill what is left of its process group."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # no process is left, as it should be


def _session_directory() -> Path:
    from ray._private import worker  # there is no public API

    return Path(worker._global_node.get_session_dir_path())  # type: ignore[attr-defined]
