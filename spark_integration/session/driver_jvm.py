"""The JVM of this process's Spark session: bounds the time of its start, and ends it completely.

pyspark keeps one JVM for the life of the process and starts later sessions in it, where the settings of the
JVM itself (memory, class path, options) would silently be those of the first session; RayDP does not work at
all in a JVM that was started without it. So the JVM ends with the session for which it was started. Also,
pyspark waits for the JVM without a limit, so a watching thread ends the JVM when its time is up, which ends
the wait.

A JVM that other code started is never touched, unless the caller asks to stop its session.
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

#: Time for a JVM to end before it is killed; it may hang in a shutdown hook.
END_TIMEOUT_S = 10.0
KILL_AGAIN_S = 1.0
#: Lines of a Java error that are reported: the call, the error, and where it was first raised.
JAVA_LINES = 4


_ours: list[object] = []  # the gateway of the JVM that bounded_start started; at most one


def require_no_jvm() -> None:
    """Raise ConfigError if this process has a Spark session, or a JVM that other code started."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        raise ConfigError(
            f"this process already has a Spark session ({running.sparkContext.appName}); use it with "
            "escrowmq.spark.register(spark, address=...), or end it with escrowmq.spark.stop_session(spark)"
        )
    if SparkContext._gateway is not None and SparkContext._gateway not in _ours:
        raise ConfigError(
            "this process has a JVM of an earlier Spark session, whose memory and class path would also "
            "apply to this one; end sessions with escrowmq.spark.stop_session(spark) instead of "
            "spark.stop(), or start this one in a new process"
        )
    end_jvm()


def jvm_is_gone(spark: SparkSession) -> bool:
    """Whether the JVM of this session has ended; the process may have another one now."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    return (
        gateway is None or getattr(spark, "_jvm", gateway.jvm)._gateway_client is not gateway._gateway_client
    )


def end_jvm() -> None:
    """End the JVM, if there is one, and remove pyspark's references to it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    _ours.clear()
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    try:
        gateway.shutdown()
    except Exception:  # it no longer answers; end it anyway
        pass
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # pyspark's JVM ends when its standard input ends
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_TIMEOUT_S)


@contextmanager
def bounded_start(limit_s: float, look_at: str, unblock: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Run a start that has no time limit itself; raises Unavailable, with ``look_at``, after ``limit_s``.

    ``unblock`` ends anything else that the start may be waiting for. After any error, no JVM is left.
    """
    from pyspark import SparkContext

    before = child_pids()
    expired, done = threading.Event(), threading.Event()

    def watch() -> None:
        wait_s = limit_s
        while not done.wait(wait_s):  # repeatedly: the start may enter another wait
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
            warnings.simplefilter("ignore")  # pyspark warns that the JVM it stops has ended
            _forget_context()
        end_jvm()
        if expired.is_set() and isinstance(error, Exception):
            raise Unavailable(f"Spark did not start within {limit_s:g} s: {look_at}", 5.0) from error
        if said is not None:  # a Java error needs its JVM to print its text, and that JVM has ended
            raise Unavailable(f"Spark did not start: {said}", 5.0) from None
        raise


def _java_text(error: BaseException) -> str | None:
    """The first lines of a Java error; None for any other error."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if not isinstance(error, Py4JError):
        return None
    try:
        return "; ".join(str(error).splitlines()[:JAVA_LINES])
    except Exception as silent:  # the JVM ended before it gave the text
        return f"its JVM ended ({silent!r})"


def _kill_jvm(fresh: set[int]) -> None:
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
        return
    for pid in fresh:  # pyspark is still waiting for the JVM's port, and has no gateway yet
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
        except Exception:  # its JVM has ended
            SparkContext._active_spark_context = None


def child_pids(pid: int | str = "self") -> set[int]:
    """The live child processes of process ``pid``."""
    found: set[int] = set()
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, listed.read_text().split()))
        except OSError:  # the thread has ended
            continue
    return found


def runs(pid: int, word: bytes) -> bool:
    """Whether the process is alive and its command line contains ``word``."""
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
