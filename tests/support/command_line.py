"""The command line in this process: a command's result, its standard output, or that as JSON."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from escrowmq import Cluster, Message
from escrowmq.cluster.cli.app import app


def run(*arguments: str, stdin: str | None = None) -> Result:
    """A command's result: exit code, standard output, standard error."""
    return CliRunner().invoke(app, list(arguments), input=stdin)


def good(*arguments: str, stdin: str | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = run(*arguments, stdin=stdin)
    assert done.exit_code == 0, f"{arguments}: {done.output}"
    return done.stdout


def as_json(*arguments: str) -> Any:
    """What a command that must succeed says in JSON."""
    return json.loads(good(*arguments, "--format", "json"))


def lines_of(*arguments: str) -> list[dict[str, Any]]:
    """The same of a command that says a JSON object a line."""
    return [json.loads(line) for line in good(*arguments, "--format", "json").splitlines()]


def left_open(cluster: Cluster, topic: str, tx_id: str, app_name: str) -> None:
    """A prepared transaction whose producer does not decide it."""
    with cluster.producer(app=app_name) as producer, producer.transaction(tx_id=tx_id, query_id="q-7") as tx:
        tx.send(Message(topic, b"held back", partition=0))
        tx.prepare()
        tx.unknown()
