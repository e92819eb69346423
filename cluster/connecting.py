"""``connect``: attaches to a running cluster from any process that can reach its Ray cluster."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from escrowmq.actors.client.topology import reconnect_s
from escrowmq.cluster.address import AUTO, check_reachable, find_address, join_ray
from escrowmq.cluster.config import Config, load_config
from escrowmq.cluster.discovery import discover
from escrowmq.cluster.handle import Cluster
from escrowmq.cluster.ray_use import use_ray
from escrowmq.cluster.settings import HOW_TO
from escrowmq.replication.errors import ClusterNotFound

# ------------------------------------------------------------------------------------------------------------
# Watches Ray's head for a program: logs when the head is lost, when it is back, and before Ray ends it.
#
# Ray ends every process that has not reached the head for a while (a minute by default), without an exception
# and with only a line about "GCS" on standard error. So a thread here tries the head's port every few seconds
# and logs what has happened, how much time is left, and what to do. It does not disconnect from Ray itself:
# other threads may be inside calls to Ray.

log = logging.getLogger(__name__)

#: Each check opens a connection to the head, and every connected program makes them ...
LOOK_EVERY_S = 5.0
#: ... but at least this many are made before Ray ends the process.
LOOKS_MIN = 12
#: A shorter absence means a busy machine, or a control store that is restarting.
SAY_AFTER_S = 2.0
#: The final message is logged at most this long before Ray ends the process ...
LAST_WORD_S = 10.0
#: ... or this fraction of the whole time, if that is less.
LAST_WORD_PART = 0.3


@dataclass(frozen=True, slots=True)
class Word:
    """A message for the log, and its level: ERROR if Ray will end the process soon."""

    level: int
    text: str


class HeadAbsence:
    """Turns the results of checks into log messages. Pure: takes ``now`` in seconds, of any origin."""

    def __init__(self, address: str, patience_s: float) -> None:
        """``patience_s``: length of an absence after which Ray ends this process."""
        self._address, self._patience_s = address, patience_s
        self._last_word_s = patience_s - min(LAST_WORD_S, LAST_WORD_PART * patience_s)
        self._say_after_s = min(SAY_AFTER_S, self._last_word_s / 2)
        self._since: float | None = None
        self._said = self._ended = False

    def seen(self, there: bool, now: float) -> Word | None:
        """Record a check's result; returns the message to log, if any."""
        if there:
            since, said = self._since, self._said
            self._since, self._said, self._ended = None, False, False
            if since is None or not said:
                return None
            return Word(logging.WARNING, f"Ray's head at {self._address} is back after {now - since:.0f} s")
        if self._since is None:
            self._since = now
        away = now - self._since
        if away >= self._last_word_s and not self._ended:
            self._said = self._ended = True
            return Word(logging.ERROR, self._last_word(away))
        if away >= self._say_after_s and not self._said:
            self._said = True
            return Word(logging.WARNING, self._first_word(away))
        return None

    def _first_word(self, away: float) -> str:
        return (
            f"Ray's head at {self._address} has been unreachable for {away:.0f} s. Running processes "
            "continue, but none that ends is restarted. If the head stays away, Ray ends this process "
            f"{self._patience_s:g} s after the loss; {HOW_TO}"
        )

    def _last_word(self, away: float) -> str:
        return (
            f"Ray's head at {self._address} has been unreachable for {away:.0f} s, and Ray ends this process "
            f"{self._patience_s:g} s after the loss. Nothing that was acknowledged is lost: when the head "
            "and the cluster are back, restart this program. Its open transactions are checked as after "
            f"any crash; {HOW_TO}"
        )


class HeadWatch:
    """The thread that checks and logs. ``reachable`` may block for a few seconds."""

    def __init__(self, address: str, patience_s: float, reachable: Callable[[], bool]) -> None:
        self._absence, self._reachable = HeadAbsence(address, patience_s), reachable
        self._every_s = min(LOOK_EVERY_S, patience_s / LOOKS_MIN)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="escrowmq-head", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop checking. Does not wait for a check in progress."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            there = self._reachable()
            if self._stopping.is_set():
                return
            word = self._absence.seen(there, time.monotonic())
            if word is not None:
                log.log(word.level, "%s", word.text)


def connect(
    address: str = AUTO, namespace: str | None = None, *, config: Config | Path | str | None = None
) -> Cluster:
    """The cluster in ``namespace`` ("escrowmq") of the Ray cluster at ``address`` (host:port).

    "auto": the Ray cluster that this process is connected to, else RAY_ADDRESS, else the only one on this
    machine. Returns or raises within seconds, even if nothing listens at the address. While the supervisor
    is away, the cluster is found through a broker. Raises ClusterNotFound, NotAuthorized, ConfigError,
    Unavailable. All handles of a process share its connection to Ray; the last one that is closed leaves it,
    unless your program joined Ray itself.
    """
    settings = config if isinstance(config, Config) else load_config(config)
    with ExitStack() as undo:
        undo.callback(use_ray())
        wanted = find_address(settings.ray.address if address == AUTO else address)
        space = namespace or settings.cluster.namespace
        join_ray(wanted, space, for_handle=True)

        def head_is_there() -> bool:
            try:
                check_reachable(wanted)
            except ClusterNotFound:
                return False
            return True

        undo.callback(HeadWatch(wanted, reconnect_s(os.environ), head_is_there).close)
        info = discover(space, wanted)
        return Cluster(info, wanted, settings, undo.pop_all().close)
