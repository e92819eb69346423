"""The program that began a cluster inside itself: the cluster ends with it, however it ends.

Ray's workers find out that their program was killed when Ray's own processes are gone. Where nobody reaps
those (a container whose first process does not) they stay as zombies, which still have a number, and workers
wait for a minute until they give up the head: so long brokers held their data directories, and the program
that was started again met DataDirLocked. So the supervisor looks at the program itself.
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
from escrowmq.replication.log.lock_file import process_started, take_lock

log = logging.getLogger(__name__)

#: One look reads one small file of /proc.
LOOK_EVERY_S = 0.25
#: Ending brokers gracefully must not take longer, and Ray's answers neither.
END_TIMEOUT_S = 20.0


@by_name()
@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A process: its number, when it started (clock ticks since boot), and which processes can see it.

    ``owns_ray``: Ray ends with it, too, and restarts nothing any more.
    """

    pid: int
    started: int
    space: str
    owns_ray: bool

    def lives(self) -> bool:
        """Whether it does. A zombie does not, nor does another process that has got its number."""
        return process_started(self.pid) == self.started

    def seen_from_here(self) -> bool:
        """Whether this process can tell: it may be in another container."""
        return _space() == self.space


def this_driver(owns_ray: bool) -> Driver:
    """The calling process."""
    started = process_started(os.getpid())
    assert started is not None, "it runs"
    return Driver(pid=os.getpid(), started=started, space=_space(), owns_ray=owns_ray)


def _space() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class DriverWatch:
    """The thread that looks; ``on_end`` is called once, in that thread."""

    def __init__(self, driver: Driver, on_end: Callable[[], None]) -> None:
        self._driver, self._on_end = driver, on_end
        self._stopping = threading.Event()
        if driver.seen_from_here():
            threading.Thread(target=self._run, name="escrowmq-driver", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._stopping.set()

    def _run(self) -> None:
        while self._driver.lives():
            if self._stopping.wait(LOOK_EVERY_S):
                return
        if not self._stopping.is_set():
            log.warning(
                "process %d, which began this cluster, has ended: so does the cluster", self._driver.pid
            )
            self._on_end()


def end_cluster(driver: Driver, namespace: str, data_dir: Path, shut_down: Callable[[], None]) -> None:
    """End all processes of a cluster whose program has ended; does not return.

    With a Ray of their own they are killed, as the program was: nothing is left to restart them, and what was
    acknowledged is on the disk. Else they are stopped as at any other time, and Ray is told to forget them.
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
    # The supervisor last, which ends this process.
    for name in sorted(named, key=lambda name: name == SUPERVISOR):
        if name == SUPERVISOR or name.startswith(("broker-", "feedback-")):
            with contextlib.suppress(ValueError):
                ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)


def _holders(data_dir: Path) -> Iterator[int]:
    """Processes that hold replicas' directories."""
    for lock in data_dir.glob("*/lock"):
        try:
            os.close(take_lock(lock, 0o644, lambda holder: holder))
        except DataDirLocked as held:
            number = str(held).partition(" ")[0]
            if number.isdecimal() and int(number) != os.getpid():
                yield int(number)
