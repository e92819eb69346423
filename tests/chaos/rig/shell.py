"""Runs the system's commands, and makes names that show which run a leftover belongs to.

The names of namespaces, mounts and directories contain the pid and the start time of the rig's process. A run
that was killed cannot clean up, so the next run removes the leftovers of every process that has ended.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

COMMAND_TIMEOUT_S = 30.0
_TAG = re.compile(r"emq-(\d+)-(\d+)(?:-|$)")


class RigError(RuntimeError):
    """A command of the rig failed; the text has the command and its output."""


def run(*command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run a command; returns its output. Raises RigError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise RigError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def attempt(command: Sequence[str]) -> str | None:
    """Run a command; returns None if it succeeds, else why it failed."""
    try:
        run(*command)
    except (RigError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None


def born(pid: int) -> int | None:
    """Start time of a process in ticks since boot; None if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def own_tag() -> str:
    """The prefix of this process's names."""
    pid = os.getpid()
    return f"emq-{pid}-{born(pid)}"


def is_stale(name: str) -> bool:
    """Whether a name belongs to a process that has ended."""
    found = _TAG.match(name)
    return bool(found) and born(int(found[1])) != int(found[2])


def own_directory() -> Path:
    """A new directory of this process below /tmp: Ray's Unix sockets allow no long path."""
    path = Path("/tmp") / f"{own_tag()}-{time.monotonic_ns() % 10**6:06d}"
    path.mkdir(mode=0o700)
    return path


def share_mounts(path: Path) -> None:
    """Make mounts and unmounts below ``path`` visible to the hosts' processes, too.

    ``ip netns exec`` gives each command a copy of all mounts. Such a copy would keep an unmounted file system
    alive, and mounting the file system a second time would destroy it.
    """
    run("mount", "--bind", str(path), str(path))
    run("mount", "--make-shared", str(path))


def unmount(path: Path | str) -> None:
    """Unmount, with retries: dying processes keep their files open a little longer."""
    deadline = time.monotonic() + 10.0
    while problem := attempt(("umount", str(path))):
        if time.monotonic() > deadline:
            raise RigError(problem)
        time.sleep(0.05)


def remove_directory(path: Path) -> None:
    """Unmount everything at and below ``path``, then delete it."""
    for mount in mounts_below(path):
        if mount == str(path):  # from share_mounts; a Ray client keeps its log there open until it ends
            run("umount", "--lazy", mount)
        else:
            unmount(mount)
    shutil.rmtree(path, ignore_errors=True)


def remove_stale_directories() -> list[Path]:
    """Remove the directories that dead runs left below /tmp."""
    stale = [path for path in Path("/tmp").glob("emq-*") if is_stale(path.name)]
    for path in stale:
        remove_directory(path)
    return stale


def mounts_below(path: Path) -> list[str]:
    """Mount points at and below a directory, innermost first."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines]
    return [point for point in reversed(points) if f"{point}/".startswith(f"{path}/")]
