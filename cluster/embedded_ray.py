"""Starts Ray inside the user's own process tree, with the settings that a broker needs.

Ray's defaults suit batch jobs: a dead node is noticed after 14 to 64 s, and arguments over 100 KiB are
passed through shared memory, which is slower. Both can be set only when a Ray cluster starts. So the values
are here (for ``start_local`` and the tests) and in ray_cluster.yaml (for deployed clusters); a test compares
the two. Nothing here may print: an embedded broker runs inside somebody else's program.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from escrowmq.cluster.settings import RaySettings

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
