"""Replacing a set of files by another, all or nothing: a replica too far behind takes a peer's log.

The new files are staged under ``incoming-<name>`` while the old ones stay valid. A marker file then
makes the decision in one step: with it the switch is finished, however often the power fails; without
it the staged files are rubbish. Removing the old log first would forget entries that this replica
helped to commit, and could lose them for the whole group.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from escrowmq.replication.disk import Disk
from escrowmq.replication.errors import CorruptLog

PREFIX: Final = "incoming-"
MARKER: Final = "install.json"


def staged_name(name: str) -> str:
    """Where to write the new content of ``name`` before the switch; sync the file there."""
    return PREFIX + name


def switch_files(disk: Disk, staged: Sequence[str], *, remove: Sequence[str]) -> None:
    """Make the staged files (given by their final names, already synced) take the place of ``remove``."""
    for name in staged:
        if not disk.exists(PREFIX + name):
            raise FileNotFoundError(f"{PREFIX + name} was not staged")
    disk.sync_dir()
    gone = [name for name in remove if name not in staged]
    disk.write_atomic(MARKER, (json.dumps({"version": 1, "rename": list(staged), "remove": gone}).encode(),))
    finish_install(disk)


def finish_install(disk: Disk) -> None:
    """Called whenever a log is opened: finish a decided switch, throw away an undecided one."""
    if disk.exists(MARKER):
        try:
            plan = json.loads(disk.read_all(MARKER))
            rename, remove = plan["rename"], plan["remove"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptLog(
                f"{MARKER} is damaged ({error}); wipe this replica and repair it from a peer"
            ) from error
        for name in remove:
            disk.remove(name)
        for name in rename:
            if disk.exists(PREFIX + name):
                disk.rename(PREFIX + name, name)
        disk.sync_dir()
        disk.remove(MARKER)
        disk.sync_dir()
    leftovers = [name for name in disk.names() if name.startswith(PREFIX)]
    for name in leftovers:
        disk.remove(name)
    if leftovers:
        disk.sync_dir()
