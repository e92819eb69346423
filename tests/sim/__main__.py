"""``python -m tests.sim``; see runner.py (apart from it so that worker processes can import it)."""

import typer

from tests.sim.runner import main

if __name__ == "__main__":
    typer.run(main)
