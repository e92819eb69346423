"""``python -m tests.history FILES...``: judge recorded histories; exit 1 if a promise was broken."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tests.history.checker import check
from tests.history.files import stream


def main(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, help="JSON lines of recorders")],
    open_is_fine: Annotated[
        bool, typer.Option("--open-is-fine", help="transactions may be undecided at the end")
    ] = False,
) -> None:
    """Merge the files by time, check them as one history, and print the result."""
    report = check(stream(files), expect_resolved=not open_is_fine)
    report.show()
    raise typer.Exit(0 if report.ok else 1)


if __name__ == "__main__":
    typer.run(main)
