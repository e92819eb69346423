"""The JVM behind this process's Spark session: its start is bounded, and its end is complete.

pyspark keeps one JVM for the life of the process and starts later sessions in it, where settings of the JVM
itself (memory, class path, options) would silently be those of the first session; RayDP does not even work
in a JVM that was started without it. So the JVM ends with the session it was started for. And pyspark
waits for it without a limit: a watch ends the JVM when its time is up, which ends the wait.

Never touches a JVM that somebody else started, unless its session is given to be stopped.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from escrowmq.replication.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A JVM that has been told to end and hangs in a hook gets this long.
END_TIMEOUT_S = 10.0
KILL_AGAIN_S = 1.0
#: Lines of a Java error that are told: what was called, the error, and where it was raised first.
JAVA_LINES = 4


_ours: list[object] = []  # the gateway to the JVM that bounded_start saw starting, at most one


def require_no_jvm() -> None:
    """Raise ConfigError if this process has a Spark session, or a JVM of somebody else's making."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        raise ConfigError(
            f"this process runs a Spark session already ({running.sparkContext.appName}): use it with "
            "escrowmq.spark.register(spark, address=...), or end it with escrowmq.spark.stop_session(spark)"
        )
    if SparkContext._gateway is not None and SparkContext._gateway not in _ours:
        raise ConfigError(
            "this process has a JVM of an earlier Spark session, whose memory and class path would be this "
            "session's too: end sessions with escrowmq.spark.stop_session(spark) instead of spark.stop(), or "
            "start this one in a process of its own"
        )
    end_jvm()


def jvm_is_gone(spark: SparkSession) -> bool:
    """Whether the JVM of this session has been ended; the process may have another one by now."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return (
        gateway is None or getattr(spark, "_jvm", gateway.jvm)._gateway_client is not gateway._gateway_client
    )


def end_jvm() -> None:
    """End the JVM, if there is one, and make pyspark forget it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    _ours.clear()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    try:
        gateway.shutdown()
    except Exception:  # it does not answer any more, which is no reason to keep it
        pass
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # what a JVM of pyspark takes for the end of its program
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_TIMEOUT_S)


@contextmanager
def bounded_start(limit_s: float, look_at: str, unblock: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Run a start that has no limit of its own; raises Unavailable, with ``look_at``, after ``limit_s``.

    ``unblock`` ends what the start may be waiting for besides the JVM. Whatever goes wrong, no JVM is left.
    """
    from pyspark import SparkContext

    before = child_pids()
    expired, done = threading.Event(), threading.Event()

    def watch() -> None:
        wait_s = limit_s
        while not done.wait(wait_s):  # again and again: one wait may follow another
            expired.set()
            _kill_jvm(child_pids() - before)
            unblock()
            wait_s = KILL_AGAIN_S

    watcher = threading.Thread(target=watch, name="spark-start-watch", daemon=True)
    watcher.start()
    try:
        yield
        done.set()
        watcher.join()
        if expired.is_set():
            raise TimeoutError(f"{limit_s:g} s")
        _ours[:] = [SparkContext._gateway]
    except BaseException as error:
        done.set()
        watcher.join()
        said = _java_text(error)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pyspark says that the JVM it stops is gone
            _forget_context()
        end_jvm()
        if expired.is_set() and isinstance(error, Exception):
            raise Unavailable(f"Spark did not start within {limit_s:g} s: {look_at}", 5.0) from error
        if said is not None:  # an error of the JVM's asks the JVM for its text, which has gone
            raise Unavailable(f"Spark did not start: {said}", 5.0) from None
        raise


def _java_text(error: BaseException) -> str | None:
    """The first lines of an error of the JVM's, None if it is another one."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if not isinstance(error, Py4JError):
        return None
    try:
        return "; ".join(str(error).splitlines()[:JAVA_LINES])
    except Exception as silent:  # it has gone before it said why
        return f"its JVM ended ({silent!r})"


def _kill_jvm(fresh: set[int]) -> None:
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
        return
    for pid in fresh:  # pyspark is still waiting for it to say where it listens
        if runs(pid, b"spark"):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _forget_context() -> None:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        try:
            context.stop()
        except Exception:  # its JVM has gone
            SparkContext._active_spark_context = None


def child_pids(pid: int | str = "self") -> set[int]:
    """The processes that process ``pid`` has started and that live."""
    found: set[int] = set()
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, listed.read_text().split()))
        except OSError:  # that thread has ended
            continue
    return found


def runs(pid: int, word: bytes) -> bool:
    """Whether the process lives and its command line has ``word`` in it; one that has ended has none."""
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
