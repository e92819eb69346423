"""Ray inside the user's own process tree, with the settings that a broker needs.

Ray's defaults suit batch jobs: a dead node is noticed after 14 to 64 s, and arguments over 100 KiB
take the slow way through shared memory. Both can only be set when a cluster starts, so the values
stand here (for ``start_local`` and the tests) and in ray_cluster.yaml (for deployed clusters), and a
test compares the two. Nothing here may print: an embedded broker is a guest in somebody's program.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from escrowmq.actors.client.forking import FORKED
from escrowmq.cluster.settings import RaySettings
from escrowmq.replication.errors import ConfigError

#: What an application handles to end in its own way.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def system_config(settings: RaySettings) -> dict[str, Any]:
    """What ``ray.init(_system_config=...)`` and ``ray start --system-config`` take."""
    period_ms = int(settings.health_check_period_s * 1000)
    return {
        "health_check_initial_delay_ms": period_ms,
        "health_check_period_ms": period_ms,
        "health_check_timeout_ms": period_ms,
        "health_check_failure_threshold": settings.health_check_failures,
        "max_direct_call_object_size": settings.direct_call_bytes,
        # Ray runs workers, and so brokers, at niceness 15: any busy program on the machine would starve them.
        "worker_niceness": 0,
    }


def start_ray(settings: RaySettings, namespace: str) -> str:
    """Start a Ray of our own in this process, quietly; returns its address.

    Always a new one (``address="local"``): a machine may run several clusters, and none of them
    asked for our brokers.
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


def refuse_after_fork() -> None:
    """Raise ConfigError if this process was forked from one that had joined Ray: it can neither use that
    connection nor make one of its own."""
    if _forked:
        raise ConfigError(f"Ray cannot be used in this process: {FORKED}")


def _in_child() -> None:
    """Ray's end at the child's exit would end the parent's Ray, and its hook for exceptions hangs."""
    global _forked
    if ray.is_initialized():
        _forked = True
        atexit.unregister(ray.shutdown)
        if sys.excepthook.__module__.startswith("ray."):
            sys.excepthook = sys.__excepthook__


_forked = False
os.register_at_fork(after_in_child=_in_child)


@contextmanager
def as_guest() -> Iterator[None]:
    """Within this, Ray neither speaks nor stays where it was not asked to.

    It announces its token authentication and its addresses by warnings; errors still pass. And ``ray.init``
    takes SIGTERM for itself, with a handler that raises SystemExit in the middle of whatever runs: a web
    server would never come to its own shutdown. The application's handlers are put back, an event loop's
    too (asyncio and uvloop stand behind an ordinary one). A handler that was set from C code cannot be.
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
