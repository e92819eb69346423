"""Sets the wall clocks of processes of a round, each on its own (see ``wall_clock/sitecustomize.py``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = "CHAOS_CLOCKS"
_MODULE = Path(__file__).parent / "wall_clock"


def environment(directory: Path) -> dict[str, str]:
    """What the processes of a round in this directory need in their environment."""
    folder = directory / "clocks"
    folder.mkdir()
    path = [str(_MODULE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(path)}


class Clocks:
    """The clocks of a round's processes."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._folder = Path(environ[FOLDER])

    def jump(self, pid: int, ahead_ms: int) -> None:
        """Set a process's clock so far ahead of the machine's (behind it, if negative)."""
        half = self._folder / f"{pid}.half"
        half.write_text(str(ahead_ms))
        half.rename(self._folder / str(pid))

    def taken(self, pid: int) -> bool:
        """Whether the process has its clock as it was set last."""
        return not (self._folder / str(pid)).exists() and self._taken(pid).exists()

    def right(self, pid: int) -> None:
        """Set a process's clock right."""
        (self._folder / str(pid)).unlink(missing_ok=True)
        self._taken(pid).unlink(missing_ok=True)

    def _taken(self, pid: int) -> Path:
        return self._folder / f"{pid}.taken"
