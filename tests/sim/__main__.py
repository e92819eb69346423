"""``python -m tests.sim [OPTIONS]`` runs schedules, ``python -m tests.sim total FILES...`` adds runs up."""

import sys

import typer

from tests.sim.runner import main
from tests.sim.totals import total

if __name__ == "__main__":
    if sys.argv[1:2] == ["total"]:
        del sys.argv[1]
        typer.run(total)
    else:
        typer.run(main)
