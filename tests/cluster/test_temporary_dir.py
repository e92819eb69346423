"""Temporary data directories: whose program was killed, its directory goes with the next start."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from escrowmq.cluster.local import MARK, TemporaryDir, sweep

MAKE = """
import sys
from pathlib import Path
from escrowmq.cluster.local import TemporaryDir
made = TemporaryDir(Path(sys.argv[1]))
(made.path / "g0-r0").mkdir()
(made.path / "g0-r0" / "lock").write_text("17")
(made.path / "supervisor.lock").write_text("18")
print(made.path, flush=True)
sys.stdin.read()
"""


def started(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A program with a temporary directory, and that directory."""
    program = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    return program, Path(program.stdout.readline().strip())


def end(program: subprocess.Popen[str]) -> None:
    program.kill()
    program.communicate(timeout=10)


def test_a_killed_programs_directory_goes_with_the_next_start(tmp_path: Path) -> None:
    program, path = started(tmp_path)
    try:
        again = TemporaryDir(tmp_path)
        assert path.is_dir() and again.path.is_dir(), "the program lives"
    finally:
        end(program)
    with (path / "g0-r0" / "lock").open() as broker:
        fcntl.flock(broker, fcntl.LOCK_EX)
        sweep(tmp_path)
        assert path.is_dir(), "a broker outlives its program for a while"
    sweep(tmp_path)
    assert not path.exists() and again.path.is_dir()
    again.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_marked_or_only_being_made_stays(tmp_path: Path) -> None:
    mine = tmp_path / "escrowmq-data"
    (mine / "g0-r0").mkdir(parents=True)
    (mine / "supervisor.lock").write_text("17")
    (made := tmp_path / "escrowmq-made").mkdir()
    (made / MARK).touch()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / MARK).write_text("17")
    (tmp_path / "escrowmq-link").symlink_to(elsewhere)
    sweep(tmp_path)
    assert mine.is_dir() and made.is_dir() and elsewhere.is_dir()
