"""Runs a program that ends with its parent: ``python parent_death.py PARENT_PID PROGRAM ARGUMENTS...``.

The kernel kills the program (SIGKILL) at the moment when the thread that started it ends, however that
happens; no clean-up by the parent could guarantee that. The setting survives exec. This module is run as a
file, so that nothing of the package is imported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, program: list[str]) -> None:
    """Tie this process to ``parent`` and become ``program``."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit("the parent ended before this process was tied to it")
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
