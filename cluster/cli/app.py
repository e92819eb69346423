"""The commands put together."""

from __future__ import annotations

from typing import Annotated

import typer

from escrowmq.cluster.cli.consuming import consume
from escrowmq.cluster.cli.database import app as database
from escrowmq.cluster.cli.exporting import exporter
from escrowmq.cluster.cli.failing import Commands
from escrowmq.cluster.cli.groups import app as groups
from escrowmq.cluster.cli.leftovers import leftovers
from escrowmq.cluster.cli.lifecycle import demo, down, up
from escrowmq.cluster.cli.members import app as members
from escrowmq.cluster.cli.nodes import app as nodes
from escrowmq.cluster.cli.producing import produce
from escrowmq.cluster.cli.profiles import app as profiles
from escrowmq.cluster.cli.rebalance import app as rebalance
from escrowmq.cluster.cli.settings import settings
from escrowmq.cluster.cli.status import status
from escrowmq.cluster.cli.topics import app as topics
from escrowmq.cluster.cli.transactions import app as transactions

app = typer.Typer(
    name="escrowmq",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # locals may hold a secret
    context_settings={"help_option_names": ["-h", "--help"]},
    help="EscrowMQ: a transactional message broker on Ray.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, setting or secret, 3 not available (try again), "
    "4 unknown topic, group or transaction, 5 conflict, 6 outcome unknown.",
)


def _version(asked: bool) -> None:
    if asked:
        import escrowmq

        print(escrowmq.__version__)
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """EscrowMQ: a transactional message broker on Ray."""


for command in (up, down, status, leftovers, demo, produce, consume, settings, exporter):
    app.command()(command)
app.add_typer(topics, name="topic")
app.add_typer(transactions, name="txn")
app.add_typer(groups, name="group")
app.add_typer(members, name="members")
app.add_typer(nodes, name="node")
app.add_typer(rebalance, name="rebalance")
app.add_typer(profiles, name="profile")
app.add_typer(database, name="db")
