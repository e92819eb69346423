"""``python -m tests.sim [OPTIONS]`` runs schedules, ``python -m tests.sim campaign FILE`` does so for hours
and adds up what it ran, ``python -m tests.sim total FILES...`` adds runs up."""

import sys

import typer

from tests.sim.campaign import campaign
from tests.sim.runner import main
from tests.sim.totals import total

COMMANDS = {"total": total, "campaign": campaign}

if __name__ == "__main__":
    command = COMMANDS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if command is not None:
        del sys.argv[1]
    typer.run(command or main)
