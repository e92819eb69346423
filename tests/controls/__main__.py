"""``python -m tests.controls``; see table.py, a separate module so that worker processes can import it."""

import typer

from tests.controls.table import main

if __name__ == "__main__":
    typer.run(main)
