"""A next version of this software, for tests in which it runs beside today's: today's with one format level
more.

It is the checkout's own package, in which the operation CUT needs that level. Once there is a version with
another level, the one before it takes this file's place: an archive of the package, which nobody changes any
more.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from escrowmq.replication.state.machine import LEVEL_MAX

ROOT = Path(__file__).parents[2]
#: Its highest format level.
LEVEL = LEVEL_MAX + 1
_FOLDERS = ("escrowmq", "actors", "cluster", "feedback", "replication")
#: File -> what stands there once, and what takes its place.
CHANGES = {
    "replication/state/machine.py": (f"LEVEL_MAX = {LEVEL_MAX}\n", f"LEVEL_MAX = {LEVEL}\n"),
    "replication/format/ops.py": (
        "    KIND = OpType.CUT\n",
        f"    KIND = OpType.CUT\n    LEVEL: ClassVar[int] = {LEVEL}\n",
    ),
}


def made(directory: Path) -> Path:
    """Make it in ``directory``, which goes into PYTHONPATH, and return that."""
    for name in _FOLDERS:
        shutil.copytree(
            ROOT / name, directory / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name, (old, new) in CHANGES.items():
        text = (directory / name).read_text()
        assert text.count(old) == 1, f"{name} no longer has {old!r} once"
        (directory / name).write_text(text.replace(old, new))
    return directory
