"""The one connection of this process to Ray: its handles share it, and the last one leaves it.

A connection that the application made itself is never closed here, nor one that Spark or Ray Data joined,
which go on using it. All changes of the connection take turns, since Ray keeps it in global variables.

A process that was forked later cannot use Ray at all: the threads of its library are in the parent. It must
not end the parent's Ray either, nor crash at its own end, so everything of Ray's is left alone there.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import state, worker

from escrowmq.actors.client.closing import CONNECT_LATER
from escrowmq.cluster.settings import RaySettings
from escrowmq.replication.errors import ConfigError, Unavailable

# ------------------------------------------------------------------------------------------------------------
# Starts Ray inside the user's own process tree, with the settings that a broker needs.
#
# Ray's defaults suit batch jobs: a dead node is noticed after 14 to 64 s, and arguments over 100 KiB are
# passed through shared memory, which is slower. Both can be set only when a Ray cluster starts. So the values
# are here (for ``start_local`` and the tests) and in ray_cluster.yaml (for deployed clusters); a test
# compares the two. Nothing here may print: an embedded broker runs inside somebody else's program.

#: Signals that applications handle for a graceful shutdown.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def system_config(settings: RaySettings) -> dict[str, Any]:
    """The settings for ``ray.init(_system_config=...)`` and ``ray start --system-config``."""
    period_ms = int(settings.health_check_period_s * 1000)
    return {
        "health_check_initial_delay_ms": period_ms,
        "health_check_period_ms": period_ms,
        "health_check_timeout_ms": period_ms,
        "health_check_failure_threshold": settings.health_check_failures,
        "max_direct_call_object_size": settings.direct_call_bytes,
        # Ray's default is to run workers (so also brokers) at niceness 15, where any busy program on the
        # machine starves them.
        "worker_niceness": 0,
    }


def start_ray(settings: RaySettings, namespace: str) -> str:
    """Start a new Ray cluster from this process, without output; returns its address.

    It is always a new one (``address="local"``): the Ray clusters that already run on the machine belong to
    others.
    """
    options: dict[str, Any] = {}
    if settings.temp_dir is not None:
        options["_temp_dir"] = str(settings.temp_dir)
    if settings.object_store_bytes is not None:
        options["object_store_memory"] = settings.object_store_bytes
    with as_guest():
        ray.init(
            address="local",
            namespace=namespace,
            num_cpus=settings.num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            _system_config=system_config(settings),
            **options,
        )
    return str(ray.get_runtime_context().gcs_address)


@contextmanager
def as_guest() -> Iterator[None]:
    """A context in which Ray logs no warnings, and after which the application's signal handlers are back.

    Ray logs its token authentication and its addresses as warnings; errors are still logged. ``ray.init``
    also replaces the handler of SIGTERM by one that raises SystemExit wherever the main thread is, so a web
    server would never run its own shutdown. The application's handlers are put back at the end, including
    those of event loops (asyncio and uvloop use an ordinary Python handler). A handler that was set by C code
    cannot be put back.
    """
    logger = logging.getLogger("ray")
    level = logger.level
    # Python sets handlers in the main thread only, and so does Ray.
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS} if main else {}
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for number, handler in handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


#: Starting Ray takes seconds, and a minute on a machine that is overloaded.
TURN_TIMEOUT_S = 60.0


class Connection:
    """What this process knows of its connection. A forked child begins with a new one."""

    def __init__(self, turn_timeout_s: float = TURN_TIMEOUT_S) -> None:
        self.turn_timeout_s = turn_timeout_s
        # Reentrant: a signal handler may close a handle while its thread is in here.
        self.turn = threading.RLock()
        #: Handles, also those that are about to join.
        self.users = 0
        #: The connection that the last handle leaves, as ``_name`` gives it.
        self.ours: str | None = None
        #: Whether ``ours`` is a Ray that was started for a handle: it ends with the last one in any case.
        self.started = False
        #: Whether Ray's library has had threads here; it keeps some when it is left.
        self.touched = False


connection = Connection()


def use_ray() -> Callable[[], None]:
    """Keep the connection to Ray, which exists or will be made, until the result is called.

    The last one that is called leaves Ray, if it was joined or started for a handle. A second call does
    nothing, nor does a call in a forked child. Raises ConfigError in such a child; Unavailable.
    """
    with changing_ray():
        connection.users += 1
    used, lasts = connection, True

    def leave() -> None:
        nonlocal lasts
        if used is not connection:
            return
        with changing_ray():
            if not lasts:
                return
            lasts = False
            used.users -= 1
            ours = used.ours
            if used.users or ours is None:
                return
            used.ours = None
            if ray.is_initialized() and ours == _name():
                with as_guest():
                    ray.shutdown()

    return leave


@contextmanager
def changing_ray() -> Iterator[None]:
    """A block in which no other thread joins, starts or leaves Ray.

    Raises ConfigError in a child that was forked from a process that had used Ray; Unavailable.
    """
    refuse_after_fork()
    turn, timeout_s = connection.turn, connection.turn_timeout_s
    if not turn.acquire(timeout=timeout_s):
        raise Unavailable(
            f"another thread of this process has been joining or leaving Ray for {timeout_s:g} s; see "
            "what Ray waits for in that thread's traceback, and try again",
            1.0,
        )
    try:
        yield
    finally:
        turn.release()


def touch_ray() -> None:
    """Called before Ray's library connects. From now on, forked children cannot use it."""
    connection.touched = True


def leave_with_the_last(*, started: bool) -> None:
    """The last handle leaves the connection that has just been made; ``started``: with a Ray of its own."""
    connection.ours, connection.started = _name(), started


def stay_connected() -> None:
    """Somebody other than handles uses the connection from now on, without an end: it is left no more.

    A Ray that was started for a handle ends nevertheless: its processes must not outlive the cluster.
    """
    with changing_ray():
        if ray.is_initialized() and not (connection.started and connection.ours == _name()):
            connection.ours = None


def _name() -> str:
    """Names this process's present connection; one that is made later has another name."""
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"


def refuse_after_fork() -> None:
    """Raise ConfigError if this process was forked from one that had used Ray.

    Such a process can neither use its parent's connection nor make a new one.
    """
    if _forked:
        raise ConfigError(
            "Ray cannot be used in this process: the parent had used Ray before os.fork(), and Ray's threads "
            f"are in the parent. {CONNECT_LATER}"
        )


def _in_child() -> None:
    global connection, _forked
    parent, connection = connection, Connection()
    if not (_forked or parent.touched or ray.is_initialized()):
        return
    # Ray's exit hook would shut down the parent's Ray, and its hook for uncaught exceptions hangs.
    atexit.unregister(ray.shutdown)
    if sys.excepthook.__module__.startswith("ray."):
        sys.excepthook = sys.__excepthook__
    if not _forked:
        _forked = True
        _end_without_ray()


def _end_without_ray() -> None:
    """At the end of this process, run no destructor of Ray's: it would wait for, or crash over, threads that
    are in the parent. Python's own exit hooks run as always."""
    for holder in (worker.global_worker, state.state):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(holder))  # nothing that it refers to is ever freed
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):  # glibc, which is what Ray's packages for Linux need
        # Called last in, first out, and before the destructors of Ray's global objects, which never run then.
        for last in (library._exit, library.fcloseall):
            library.on_exit(ctypes.cast(last, ctypes.c_void_p), None)


_forked = False
os.register_at_fork(after_in_child=_in_child)
