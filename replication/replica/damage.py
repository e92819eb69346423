"""What is wrong with a file that another replica relies on: log, snapshot, run file or file of timers, with
every checksum.

Used before a copied file is switched in, and by a leader for a file that a peer found damaged: a cold
segment may not be read for weeks.
"""

from __future__ import annotations

from collections.abc import Iterator

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.segment_format import (
    FILE_HEADER_SIZE,
    file_header_is_sound,
    first_of_name,
    walk,
)
from escrowmq.replication.log.disk import File
from escrowmq.replication.replica.checkpoints import STATE_PARTS
from escrowmq.replication.state import snapshot
from escrowmq.replication.state.stored_runs import verify_runs
from escrowmq.replication.timers.sealed_file import SUFFIX, verify_timers

NEWER = " (damaged, or written by a newer version: then upgrade this replica)"
#: Ends of the names of files that hold a state: snapshots, and the files that these name.
STATE_FILES = (".snap", *STATE_PARTS)
#: One of these is checked in pieces of this size, a log file in windows (format/segment_format.py).
PIECE_BYTES = 1 << 20
_VERIFY = {".snap": snapshot.verify, ".runs": verify_runs, SUFFIX: verify_timers}


def damage_in(name: str, file: File, size: int | None = None, piece_bytes: int = PIECE_BYTES) -> str | None:
    """What is wrong with a whole file that others rely on (a log file or one of ``STATE_FILES``); None:
    nothing. It is read piece by piece: run files of large topics have hundreds of megabytes. ``piece_bytes``:
    of the state's files.

    A log file must hold whole, sound entries up to its last byte, or at least up to ``size``: the rest may
    be being written just now. Another format version counts as damage: a flipped bit can look like one,
    and a file that cannot be read cannot be relied on.
    """
    try:
        if name.endswith(STATE_FILES):
            for _ in verify_state_file(name, file, piece_bytes):
                pass
        elif (first := first_of_name(name)) is not None:
            if not file_header_is_sound(memoryview(file.read(0, FILE_HEADER_SIZE)), first, name):
                return f"{name} has a damaged file header at byte 0"
            found = walk(file.read, file.size(), first)
            if found.problem is not None and (size is None or found.end < size):
                return f"{name}: {found.problem}"
    except CorruptLog as error:
        return f"{error}{_newer(error)}"
    except UnknownVersion as error:
        return f"{name}: {error}{NEWER}"
    return None


def _newer(error: CorruptLog) -> str:
    return NEWER if isinstance(error.__cause__, UnknownVersion) else ""


def verify_state_file(name: str, file: File, piece_bytes: int) -> Iterator[int]:
    """Re-read one of ``STATE_FILES``, every checksum, about ``piece_bytes`` at a time; yields the bytes of
    each.

    In bounded memory, and without interpreting the content. Raises CorruptLog, also for another
    version, as ``damage_in`` does.
    """
    check = _VERIFY[name[name.rindex(".") :]]
    try:
        yield from check(name, file.read, file.size(), piece_bytes)
    except UnknownVersion as error:
        raise CorruptLog(f"{name}: {error}") from error
