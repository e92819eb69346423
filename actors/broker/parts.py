"""Everything that answers a broker's callers once its replica runs: one part per subject."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable
from pathlib import Path

from escrowmq.actors.broker.group_service import GroupService
from escrowmq.replication.errors import Closed, Overloaded
from escrowmq.replication.host.due_checks import DueChecks, Watching
from escrowmq.replication.host.inspection import Inspection, Instruments, Scheduled, ShareReports
from escrowmq.replication.host.member_changes import MemberChanges
from escrowmq.replication.host.reads import Reads
from escrowmq.replication.host.requests import Requests
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.host.sharing import Sharing
from escrowmq.replication.host.snapshot_source import SnapshotSource
from escrowmq.replication.host.tracing import Messages
from escrowmq.replication.net.client_listener import CLIENTS_MAX, ClientLimits, ClientListener

# ------------------------------------------------------------------------------------------------------------
# How many clients may connect: the log must never lack a file descriptor because of them.

#: What Ray and a broker open besides: a few hundred, and as many again for peers, segments and snapshots.
RESERVED = 512
_OPEN = Path("/proc/self/fd")


def clients_max() -> int:
    """Raises this process's soft limit of descriptors to its hard one; then, at most half of what is left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return CLIENTS_MAX
    open_now = len(list(_OPEN.iterdir())) if _OPEN.is_dir() else 0
    return max(0, min(CLIENTS_MAX, (soft - open_now - RESERVED) // 2))


class Parts:
    """The parts of one running replica. Thread-safe, as each of them is."""

    def __init__(
        self, running: RunningReplica, sharing: Callable[[RunningReplica], Sharing] = Sharing
    ) -> None:
        self.running = running
        self.requests = Requests(running)
        self.reads = Reads(running)
        self.due_checks = DueChecks(running)
        self.inspection = Inspection(running)
        self.watching = Watching(running)
        self.scheduled = Scheduled(running)
        self.sharing = sharing(running)
        self.share_reports = ShareReports(running)
        self.messages = Messages(running, self.reads)
        self.instruments = Instruments(running, self.requests.counts, self.messages.finder)
        self.members = MemberChanges(running)
        self.offers = SnapshotSource(running)
        self._door: ClientListener | None = None
        self._opening = threading.Lock()
        self.groups = GroupService.over(running, self.reads, self.requests)

    def client_link(self) -> tuple[str, int, bytes] | None:
        """Host, port and key of the listener for clients' own connections, which the first caller opens;
        None: there is none, or not yet. Those connections are not encrypted, so there is none with TLS
        between replicas or with Ray's own."""
        running = self.running
        if running.setup.tls is not None or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
            return None
        with self._opening:
            if self._door is None:
                limits = ClientLimits(clients=clients_max())
                door = ClientListener(self.requests.begin, running.setup.monotonic, limits)
                try:
                    running.driver.serve(door)
                except (Closed, Overloaded):
                    return None
                self._door = door
        return self._door.open_to()
