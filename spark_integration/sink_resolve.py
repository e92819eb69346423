"""An operator's command to settle the transactions that a Spark query has left.

python -m escrowmq.spark_integration.sink_resolve /checkpoints/alerts --address host:port
"""

from typing import Annotated

import typer

from escrowmq.cluster.address import AUTO
from escrowmq.replication.errors import EscrowMQError
from escrowmq.spark_integration.sink.intents import RAY_DATA
from escrowmq.spark_integration.sink.settling import resolve_sink, resolve_write

_GIVE_UP = "Give up this epoch, if nothing of it is committed. The query must be stopped."
_STOPPED = "The query is stopped: also roll back what only it could commit."


def main(
    what: Annotated[str, typer.Argument(help="Checkpoint of a streaming query, or a batch write's id.")],
    address: Annotated[str, typer.Option(help="Ray cluster as host:port.")] = AUTO,
    namespace: Annotated[str | None, typer.Option(help="Ray namespace of the cluster.")] = None,
    discard: Annotated[int | None, typer.Option(help=_GIVE_UP)] = None,
    stopped: Annotated[bool, typer.Option("--stopped", help=_STOPPED)] = False,
) -> None:
    """Settle a Spark query's open transactions: commit epochs with an intent, roll back what has lost."""
    try:
        if what.startswith(("batch-", RAY_DATA)):
            found = resolve_write(what, address=address, namespace=namespace)
        else:
            found = resolve_sink(what, address=address, namespace=namespace, discard=discard, stopped=stopped)
    except EscrowMQError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"committed epochs: {', '.join(map(str, found.committed)) or 'none were open'}")
    typer.echo(f"rolled back: {found.rolled_back} transactions")
    if found.undecided:
        typer.echo(f"left to the query: {found.undecided} transactions; if it is stopped, use --stopped")
    for epoch, why in found.stuck.items():
        typer.echo(f"epoch {epoch} is stuck: {why}", err=True)
    if found.stuck:
        raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(main)
