"""The command line ``escrowmq``: noun–verb commands, tables for people, JSON for programs, one-line errors.

Every command is a thin wrapper around the Python API. A command must never show a stack trace for
an error that the user can correct, and must never take a secret as an argument.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry point of the console script. SIGTERM ends a command as Ctrl-C does."""
    from escrowmq.cluster.cli.app import app_for
    from escrowmq.cluster.cli.failing import writing_out

    signal.signal(signal.SIGTERM, _ended)
    # A shell that completes a line asks by this variable, and may ask for any command.
    command = app_for([] if "_ESCROWMQ_COMPLETE" in os.environ else sys.argv[1:])
    with writing_out():  # also the output of --help
        command(prog_name="escrowmq")


def _ended(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
