"""The thread that keeps a replica's files sound while it runs: it scrubs, and has damaged entries mended.

It may wait for peers and for the disk, which the thread that sends heartbeats must never do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Final

from escrowmq.replication.errors import Closed, Overloaded
from escrowmq.replication.host.mending import Mender
from escrowmq.replication.host.scrubbing import Scrubber

#: At this rate fetching entries to mend is no burden, even if a whole file has to be mended.
MEND_BYTES_PER_S: Final = 50 << 20
#: A start reads enough by itself, and peers may want copies: scrubbing begins after this time.
FIRST_SCRUB_S: Final = 30.0
#: Pause if the replica's loop did not answer.
AGAIN_S: Final = 1.0


class Maintenance:
    """One per running replica. ``start``, ``wake`` from any thread, ``stop``."""

    def __init__(self, name: str, end: Callable[[BaseException], None]) -> None:
        """``end(error)``: called if this replica cannot continue."""
        self._end = end
        self._work, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._mender: Mender | None = None
        self._scrubber: Scrubber | None = None

    def start(self, mender: Mender, scrubber: Scrubber) -> None:
        self._mender, self._scrubber = mender, scrubber
        self._thread.start()

    def wake(self) -> None:
        """Something is damaged: mend it."""
        self._work.set()

    def pace(self, size: int) -> None:
        """Wait for as long as ``size`` bytes should take."""
        self._stopping.wait(size / MEND_BYTES_PER_S)

    def stop(self, timeout_s: float) -> bool:
        """Returns whether the thread has ended, or never ran."""
        self._stopping.set()
        self._work.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        assert self._mender is not None and self._scrubber is not None
        mend_at: float | None = None
        scrub_at = time.monotonic() + FIRST_SCRUB_S
        while not self._stopping.is_set():
            now = time.monotonic()
            until = scrub_at if mend_at is None else min(scrub_at, mend_at)
            if mend_at is not None:
                self._stopping.wait(max(0.0, until - now))
            elif self._work.wait(max(0.0, until - now)):
                self._work.clear()
                mend_at = time.monotonic()
            now = time.monotonic()
            try:
                if mend_at is not None and now >= mend_at:
                    pause_s = self._mender.round()
                    mend_at = None if pause_s is None else time.monotonic() + pause_s
                if now >= scrub_at and not self._stopping.is_set():
                    scrub_at = now + self._scrubber.step()
            except Closed:
                return
            except (FutureTimeout, Overloaded):
                mend_at = time.monotonic() + AGAIN_S
                scrub_at = max(scrub_at, mend_at)  # otherwise it is due, and would be tried without a pause
            except Exception as error:  # above all the disk's
                self._end(error)
                return
