"""The command line ``escrowmq``: noun–verb, tables for people and JSON for programs, errors of one line.

Every command is a thin call of what the Python face offers. It must never show a stack trace for
something the user can mend, and never take a secret as an argument.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from escrowmq.cluster.cli.app import app

    app()
