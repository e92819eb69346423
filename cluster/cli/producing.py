"""``escrowmq produce``: sends messages from arguments, a file, or standard input.

It reads ahead no further than the producer's buffer allows, so a file of any size can be sent. A message
counts as sent once the broker has acknowledged it.
"""

from __future__ import annotations

import base64
import collections
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from escrowmq.cluster.cli.options import TAG_HELP, ConnectionOptions, with_connection
from escrowmq.cluster.cli.output import Format, Shown, show_pairs

if TYPE_CHECKING:
    from escrowmq.replication.model import Message, RecordMetadata

#: Messages sent and not yet acknowledged: enough to keep the producer busy, few enough to hold in memory.
IN_FLIGHT_MAX = 10_000


@with_connection
def produce(
    connection: ConnectionOptions,
    topic: Annotated[str, typer.Argument(help="Name of the topic.", show_default=False)],
    values: Annotated[
        list[str] | None,
        typer.Argument(
            help="Messages. If none: one per line of --file or standard input.", show_default=False
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read lines from this file ('-': standard input).")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of every message.")] = None,
    key_separator: Annotated[str | None, typer.Option(help="Separates key and value in each line.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="name=value, for every message; repeatable.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help=TAG_HELP)] = None,
    partition: Annotated[int | None, typer.Option(help="Partition, instead of the choice by key.")] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help='Each line is JSON: {"value": "..", "key": "..", "headers": {..}, "partition": 0}; bytes '
            'that are not text are {"base64": ".."}. The output of \'consume --format json\' is accepted '
            "too; its topic, offset, timestamp and tx_id are ignored.",
        ),
    ] = False,
    transaction: Annotated[
        bool, typer.Option("--transaction", help="All messages in one transaction: all of them or none.")
    ] = False,
    delay: Annotated[
        float | None,
        typer.Option(help="Seconds until the messages can be read: 'escrowmq schedule'.", show_default=False),
    ] = None,
    app: Annotated[str, typer.Option(help="App that the producer belongs to.")] = "escrowmq-cli",
    shown: Shown = Format.table,
) -> None:
    """Send messages to a topic."""
    from escrowmq.replication.errors import ConfigError
    from escrowmq.replication.message_headers import with_own

    if values and file:
        raise ConfigError("messages come from arguments or from --file; give only one of them")
    if as_json and (key_separator is not None or key is not None or header or tag or partition is not None):
        raise ConfigError(
            "with --json, each line has its own key, headers and partition; "
            "leave out --key, --key-separator, --header, --tag and --partition"
        )
    headers = _headers(header or []) if tag is None else with_own(_headers(header or []), tag, None)
    parse = _Parser(topic, key, key_separator, headers, partition, as_json, delay)
    with connection.joined() as cluster, cluster.producer(app) as producer:
        lines = [value.encode() for value in values] if values else _lines(file)
        messages = (parse(number, line) for number, line in enumerate(lines, start=1))
        if transaction:
            with producer.transaction() as tx:
                count = 0
                for message in messages:
                    tx.send(message)
                    count += 1
                tx_id = tx.tx_id
            result: dict[str, Any] = {"topic": topic, "sent": count, "tx_id": tx_id}
        else:
            result = {"topic": topic, "sent": _send_all(producer, messages)}
    show_pairs(shown, result, result)


def _send_all(producer: Any, messages: Iterable[Message]) -> int:
    """Send all messages and wait until all are acknowledged; return their number.

    Raises the first error, after printing how many messages were acknowledged before it.
    """
    waiting: collections.deque[Future[RecordMetadata]] = collections.deque()
    done = 0
    try:
        for message in messages:
            waiting.append(producer.send(message))
            while len(waiting) >= IN_FLIGHT_MAX or (waiting and waiting[0].done()):
                waiting.popleft().result()
                done += 1
        while waiting:
            waiting.popleft().result()
            done += 1
    except BaseException:
        if done:
            print(f"{done} messages were acknowledged before this", file=sys.stderr)
        raise
    return done


class _Parser:
    """Makes a message from each line."""

    def __init__(
        self,
        topic: str,
        key: str | None,
        separator: str | None,
        headers: dict[str, bytes],
        partition: int | None,
        as_json: bool,
        delay_s: float | None = None,
    ) -> None:
        self.topic, self.partition, self.headers, self.as_json = topic, partition, headers, as_json
        self.delay_s = delay_s
        self.key = None if key is None else key.encode()
        self.separator = None if separator is None else separator.encode()

    def __call__(self, number: int, line: bytes) -> Message:
        from escrowmq.replication.errors import InvalidMessage
        from escrowmq.replication.model import Message

        if self.as_json:
            return self._from_json(number, line)
        key, value = self.key, line
        if self.separator is not None:
            head, separator, tail = line.partition(self.separator)
            if not separator:
                raise InvalidMessage(
                    f"line {number} has no {self.separator.decode()!r} between key and value"
                )
            key, value = head, tail
        return Message(self.topic, value, key, self.headers, self.partition, delay_s=self.delay_s)

    def _from_json(self, number: int, line: bytes) -> Message:
        from escrowmq.replication.errors import InvalidMessage
        from escrowmq.replication.model import Message

        try:
            entry = json.loads(line)
        except ValueError as error:
            raise InvalidMessage(f"line {number} is not JSON: {error}") from None
        known = {"value", "key", "headers", "partition"}
        if isinstance(entry, dict) and "offset" in entry:  # a record, as consume prints it
            known |= {"topic", "offset", "timestamp", "tx_id"}
        if not isinstance(entry, dict) or not set(entry) <= known or "value" not in entry:
            raise InvalidMessage(f"line {number} must be an object with 'value', and only {sorted(known)}")
        key, headers = entry.get("key"), entry.get("headers") or {}
        if not isinstance(headers, dict):
            raise InvalidMessage(f"line {number}: headers must be an object")
        return Message(
            self.topic,
            _bytes(number, "value", entry["value"]),
            None if key is None else _bytes(number, "key", key),
            {name: _bytes(number, f"header {name!r}", value) for name, value in headers.items()},
            entry.get("partition"),
            delay_s=self.delay_s,
        )


def _bytes(number: int, what: str, value: Any) -> bytes:
    """The inverse of ``text_or_base64`` in output.py."""
    from escrowmq.replication.errors import InvalidMessage

    try:
        if isinstance(value, str):
            return value.encode()
        if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
            return base64.b64decode(value["base64"], validate=True)
    except ValueError as error:
        raise InvalidMessage(f"line {number}: {what} cannot be read: {error}") from None
    raise InvalidMessage(f'line {number}: {what} must be a string, or {{"base64": ".."}} for other bytes')


def _headers(pairs: list[str]) -> dict[str, bytes]:
    from escrowmq.replication.errors import ConfigError

    found = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ConfigError(f"a header must be name=value, not {pair!r}")
        found[name] = value.encode()
    return found


def _lines(file: Path | None) -> Iterator[bytes]:
    """Lines without line ends. Reading a file shows a progress bar if standard error is a terminal."""
    from escrowmq.replication.errors import ConfigError

    if file is None or str(file) == "-":
        yield from _split(sys.stdin.buffer)
        return
    try:
        stream = file.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
    )
    with stream, Progress(*columns, console=Console(file=sys.stderr), transient=True) as progress:
        task = progress.add_task("sending", total=file.stat().st_size)
        for line in _split(stream):
            progress.advance(task, len(line) + 1)
            yield line


def _split(stream: BinaryIO) -> Iterator[bytes]:
    for line in stream:
        yield line.rstrip(b"\r\n")
