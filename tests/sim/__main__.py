"""``python -m tests.sim [OPTIONS]`` runs schedules, ``python -m tests.sim campaign FILE`` runs them for hours
and keeps totals, ``python -m tests.sim total FILES...`` sums up several runs."""

import sys

import typer

from tests.sim.running.campaign import campaign
from tests.sim.running.runner import main
from tests.sim.running.totals import total

COMMANDS = {"total": total, "campaign": campaign}

if __name__ == "__main__":
    command = COMMANDS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if command is not None:
        del sys.argv[1]
    typer.run(command or main)
