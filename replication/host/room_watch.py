"""How much room the replica's disk has: looked at in a thread of its own.

A file system that hangs (a network file system, a failing disk) does not answer ``statvfs`` either. The
thread that sends heartbeats must not wait for it, so it takes the value of the last look. A look that hangs
or fails changes no decision; it is told to operators. At most one look is under way.

It also sees whether the replica's files are still there. A directory that is deleted under a process stays
usable through open descriptors: the replica would go on acknowledging into files that have no name, which the
next start would not find. Two looks in a row must say so, since files also go in the ordinary course.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

#: At 100 MB/s, 10 MB are written between two looks: far less than what is kept free (256 MiB).
EVERY_S: Final = 0.1
#: A look takes microseconds.
HANGS_S: Final = 2.0
#: The thread only looks, so a replica that stops leaves one that hangs behind.
STOP_S: Final = 1.0


class RoomWatch:
    """``start``; then read ``free_bytes``, ``size_bytes`` and ``problem`` in any thread; ``stop``."""

    def __init__(
        self,
        name: str,
        free_bytes: Callable[[], int],
        size_bytes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        *,
        missing: Callable[[], str] = lambda: "",
        on_missing: Callable[[str], None] = lambda what: None,
    ) -> None:
        """``missing()``: which of the replica's files has gone; "": none. ``on_missing(what)`` is called at
        most once, and no look follows it."""
        self._free, self._size, self._clock = free_bytes, size_bytes, clock
        self._missing, self._on_missing, self._missed = missing, on_missing, ""
        #: What the last look found; None: none has succeeded yet.
        self.free_bytes: int | None = None
        self.size_bytes = 0
        self._error = ""
        self._looking_since: float | None = None
        self._stopping, self._looked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Returns after the first look, or when that hangs."""
        self._thread.start()
        self._looked.wait(HANGS_S)

    def stop(self) -> None:
        """No further look begins."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)

    @property
    def problem(self) -> str:
        """Why the room is not known now; "" if it is."""
        since = self._looking_since
        hangs_s = 0.0 if since is None else self._clock() - since
        return f"it has not answered for {hangs_s:.0f} s" if hangs_s >= HANGS_S else self._error

    def below(self, least_bytes: float) -> bool:
        """Whether less than that was free at the last look. Unknown room counts as enough: a write that finds
        none says so itself."""
        return self.free_bytes is not None and self.free_bytes < least_bytes

    def look(self) -> None:
        """One look; an error is kept until the next one."""
        self._looking_since = self._clock()
        try:
            self.free_bytes = self._free()
            self.size_bytes = self._size()
            self._error = ""
        except OSError as error:
            self._error = str(error)
        try:
            missed, self._missed = self._missed, self._missing()
        finally:
            self._looking_since = None
        if missed and self._missed:
            self._stopping.set()
            self._on_missing(self._missed)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.look()
            self._looked.set()
            self._stopping.wait(EVERY_S)
