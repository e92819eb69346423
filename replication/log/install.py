"""Atomic replacement of a set of files: a replica that is too far behind takes a peer's log.

The new files are staged under ``incoming-<name>`` while the old ones stay valid. A marker file then
makes the decision in one step: once it exists the switch is completed, however often the power fails; without
it the staged files are discarded. Removing the old log first would forget entries that this replica
helped to commit, and could lose them for the whole group. For the same reason nothing is removed before the
marker has been verified and every file that it promises has been found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from google_crc32c import value as crc32c

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.log.disk import Disk
from escrowmq.replication.log.vote import NAME as VOTE

PREFIX: Final = "incoming-"
MARKER: Final = "install.json"
VERSION: Final = 1
_NAME: Final = re.compile(r"[0-9A-Za-z_-][0-9A-Za-z._-]{0,199}")
_SIZE_MAX: Final = 1 << 63


class _Plan(NamedTuple):
    """What the marker decides. ``rename``: final name -> bytes of the file."""

    rename: Mapping[str, int]
    remove: Sequence[str]


def staged_name(name: str) -> str:
    """Where to write the new content of ``name`` before the switch; sync the file there."""
    return PREFIX + name


def may_be_installed(name: str) -> bool:
    """Whether a file of this name can take part in a switch: a plain name, and not one of the switch's
    own."""
    return _NAME.fullmatch(name) is not None and not name.startswith(PREFIX) and name not in (MARKER, VOTE)


def switch_files(disk: Disk, staged: Sequence[str], *, remove: Sequence[str]) -> None:
    """Replace the files ``remove`` by the staged files (given by their final names, already synced)."""
    sizes = {}
    for name in staged:
        if not disk.exists(PREFIX + name):
            raise FileNotFoundError(f"{PREFIX + name} was not staged")
        sizes[name] = _size(disk, PREFIX + name)
    disk.sync_dir()
    gone = [name for name in remove if name not in sizes]
    disk.write_atomic(MARKER, (_encode(_Plan(sizes, gone)),))
    finish_install(disk)


def finish_install(disk: Disk) -> None:
    """Called whenever a log is opened: complete a decided switch, discard an undecided one.

    Raises CorruptLog, without having changed anything, if the marker is damaged or a file that it promises is
    missing; UnknownVersion for a marker of a newer version.
    """
    if disk.exists(MARKER):
        plan = decode_marker(disk.read_all(MARKER))
        waiting = [name for name, size in plan.rename.items() if _is_staged(disk, name, size)]
        for name in plan.remove:
            disk.remove(name)
        for name in waiting:
            disk.rename(PREFIX + name, name)
        disk.sync_dir()
        disk.remove(MARKER)
        disk.sync_dir()
    leftovers = [name for name in disk.names() if name.startswith(PREFIX)]
    for name in leftovers:
        disk.remove(name)
    if leftovers:
        disk.sync_dir()


def _is_staged(disk: Disk, name: str, size: int) -> bool:
    """True if the new file is still to be renamed, False if it was renamed before the power failed."""
    staged = disk.exists(PREFIX + name)
    at = PREFIX + name if staged else name
    if not disk.exists(at):
        raise _damaged(f"it promises {name}, which does not exist")
    if _size(disk, at) != size:
        raise _damaged(f"it promises {name} of {size} bytes, and it has {_size(disk, at)}")
    return staged


def _size(disk: Disk, name: str) -> int:
    file = disk.open(name)
    try:
        return file.size()
    finally:
        file.close()


def _encode(plan: _Plan) -> bytes:
    content = {"version": VERSION, "rename": dict(plan.rename), "remove": list(plan.remove)}
    line = json.dumps(content).encode() + b"\n"
    return line + b"%08x\n" % crc32c(line)


def decode_marker(data: bytes) -> _Plan:
    """A marker's content, checked. Raises CorruptLog or UnknownVersion."""
    line, end, checksum = data.partition(b"\n")
    if checksum != b"%08x\n" % crc32c(line + end):
        raise _damaged("its checksum does not match")
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, not text, or nested too deeply
        raise _damaged(f"it is not JSON: {type(error).__name__}") from None
    version = content.get("version") if isinstance(content, dict) else None
    if type(version) is int and version > VERSION:
        raise UnknownVersion(
            f"{MARKER} has format version {version}; this software reads {VERSION}: upgrade it"
        )
    if type(version) is not int or version != VERSION:
        raise _damaged("it does not say its version")
    rename, remove = content.get("rename"), content.get("remove")
    if not isinstance(rename, dict) or not all(map(_is_size, rename.values())):
        raise _damaged("it does not say how large the new files are")
    if not _are_names(list(rename)):
        raise _damaged("it does not say what to rename")
    if not _are_names(remove) or not rename.keys().isdisjoint(remove):
        raise _damaged("it does not say what to remove")
    return _Plan(rename, remove)


def _are_names(value: Any) -> bool:
    """Whether it is a list of distinct names that may be installed."""
    if not isinstance(value, list) or not all(isinstance(n, str) and may_be_installed(n) for n in value):
        return False
    return len(set(value)) == len(value)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < _SIZE_MAX


def _damaged(why: str) -> CorruptLog:
    return CorruptLog(f"{MARKER} is damaged ({why}); nothing was removed: repair this replica from a peer")
