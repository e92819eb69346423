"""How many clients may connect: the log must never lack a file descriptor because of them."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from escrowmq.replication.net.client_listener import CLIENTS_MAX

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
