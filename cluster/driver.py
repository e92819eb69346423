"""Ends an embedded cluster together with the program (the driver) that started it, however that ends.

Ray's workers notice that their program was killed when Ray's own processes are gone. If those processes are
not reaped (in a container whose first process does not do it), they remain as zombies, which still have a
pid. The workers then wait a minute before they give up the head. All that time, brokers held their data
directories, and a restarted program failed with DataDirLocked. So the supervisor watches the program itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import ray

from escrowmq.actors.client.topology import SUPERVISOR
from escrowmq.replication.carried_settings import by_name
from escrowmq.replication.errors import DataDirLocked
from escrowmq.replication.log.datadir import process_started, take_lock

log = logging.getLogger(__name__)

#: Each check reads one small file in /proc.
LOOK_EVERY_S = 0.25
#: Limit for ending brokers gracefully, including Ray's answers.
END_TIMEOUT_S = 20.0


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProcess:
    """A process: its pid, its start time (clock ticks since boot), and its pid namespace (``space``).

    ``owns_ray``: it also started Ray, which ends with it and then restarts nothing.
    """

    pid: int
    started: int
    space: str
    owns_ray: bool

    def lives(self) -> bool:
        """Whether it is running. A zombie is not, nor is another process that was given the same pid."""
        return process_started(self.pid) == self.started

    def seen_from_here(self) -> bool:
        """Whether this process can see it; it cannot if it is in another container."""
        return _space() == self.space


def this_driver(owns_ray: bool) -> DriverProcess:
    """The calling process as a DriverProcess."""
    started = process_started(os.getpid())
    assert started is not None, "it runs"
    return DriverProcess(pid=os.getpid(), started=started, space=_space(), owns_ray=owns_ray)


def _space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class DriverWatch:
    """A thread that watches the driver; it calls ``on_end`` once when the driver has ended."""

    def __init__(self, driver: DriverProcess, on_end: Callable[[], None]) -> None:
        self._driver, self._on_end = driver, on_end
        self._stopping = threading.Event()
        if driver.seen_from_here():
            threading.Thread(target=self._run, name="escrowmq-driver", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._stopping.set()

    def _run(self) -> None:
        while self._driver.lives():
            if self._stopping.wait(LOOK_EVERY_S):
                return
        if not self._stopping.is_set():
            log.warning(
                "process %d, which started this cluster, has ended: ending the cluster", self._driver.pid
            )
            self._on_end()


def end_cluster(driver: DriverProcess, namespace: str, data_dir: Path, shut_down: Callable[[], None]) -> None:
    """End all processes of a cluster whose driver has ended; does not return.

    If the driver owned Ray, the processes are killed, as the driver was: nothing is left that would restart
    them, and all that was acknowledged is on disk. Otherwise they are stopped gracefully first, and their
    actors are killed without restart.
    """
    if not driver.owns_ray:
        ending = threading.Thread(target=_end_actors, args=(namespace, shut_down), daemon=True)
        ending.start()
        ending.join(END_TIMEOUT_S)
    for pid in _holders(data_dir):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _end_actors(namespace: str, shut_down: Callable[[], None]) -> None:
    shut_down()
    named = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)
             if entry["namespace"] == namespace]  # fmt: skip
    # The supervisor last: killing it ends this process.
    for name in sorted(named, key=lambda name: name == SUPERVISOR):
        if name == SUPERVISOR or name.startswith(("broker-", "feedback-")):
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)


def _holders(data_dir: Path) -> Iterator[int]:
    """Pids of the processes that hold locks of replicas' directories."""
    for lock in data_dir.glob("*/lock"):
        try:
            os.close(take_lock(lock, 0o644, lambda holder: holder))
        except DataDirLocked as held:
            number = str(held).partition(" ")[0]
            if number.isdecimal() and int(number) != os.getpid():
                yield int(number)
