"""Running the system's own commands, and names that tell whose leftovers something is.

What a rig creates outside its own process (namespaces, mounts, directories) carries the process's id and
start time in its name. A run that was killed cannot clean up after itself: the next one does it, for every
owner that no longer lives.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMMAND_TIMEOUT_S = 30.0
_TAG = re.compile(r"emq-(\d+)-(\d+)(?:-|$)")


class RigError(RuntimeError):
    """A command of the rig failed; says which, and what it wrote."""


def run(*command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """The command's output. Raises RigError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RigError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def attempt(command: Sequence[str]) -> str | None:
    """None if the command succeeds, else why it does not."""
    try:
        run(*command)
    except (RigError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


def born(pid: int) -> int | None:
    """When a process started, in ticks since boot; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def own_tag() -> str:
    """The beginning of this process's names."""
    pid = os.getpid()
    return f"emq-{pid}-{born(pid)}"


def is_stale(name: str) -> bool:
    """Whether something of that name belonged to a process that is gone."""
    found = _TAG.match(name)
    return bool(found) and born(int(found[1])) != int(found[2])
