"""``escrowmq consume``: prints committed messages of topics, up to their current end or indefinitely.

Without a group, it reads all partitions by itself and commits nothing. With a group, it shares the
partitions with the group's other members and commits the offsets of what it has printed.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cluster.cli.options import TAG_HELP, ConnectionOptions, number_or_date, with_connection
from escrowmq.cluster.cli.output import Format, Shown, note, text_or_base64, when

if TYPE_CHECKING:
    from escrowmq.cluster.handle import Cluster
    from escrowmq.replication.model import ConsumerRecord


# ------------------------------------------------------------------------------------------------------------
# The format strings of ``consume -f``: text with placeholders for a record's parts, as in kcat.
#
# ``%k %v\n`` prints key and value unchanged, byte for byte, and then ends the line.

#: Letter -> its description in --help, and the function that makes its bytes.
PARTS: dict[str, tuple[str, Callable[[ConsumerRecord], bytes]]] = {
    "t": ("topic", lambda record: record.topic.encode()),
    "p": ("partition", lambda record: b"%d" % record.partition),
    "o": ("offset", lambda record: b"%d" % record.offset),
    "T": ("timestamp in ms", lambda record: b"%d" % record.timestamp),
    "k": ("key", lambda record: record.key or b""),
    "v": ("value", lambda record: record.value),
    "h": ("headers", lambda record: b",".join(n.encode() + b"=" + v for n, v in record.headers.items())),
    "x": ("transaction id", lambda record: (record.tx_id or "").encode()),
    "K": ("length of the key in bytes, -1 without one", lambda record: b"%d" % _size(record.key)),
    "V": ("length of the value in bytes", lambda record: b"%d" % len(record.value)),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|[^%\\]+", re.DOTALL)
HELP = "Format of each record: " + ", ".join(f"%{letter} {what}" for letter, (what, _) in PARTS.items())


def _size(key: bytes | None) -> int:
    return -1 if key is None else len(key)


def template(text: str) -> Callable[[ConsumerRecord], bytes]:
    """A function from a record to the bytes to print. Raises ConfigError for an unknown letter or escape."""
    from escrowmq.replication.errors import ConfigError

    pieces: list[bytes | Callable[[ConsumerRecord], bytes]] = []
    for found in _PIECE.finditer(text):
        letter, escape = found[1], found[2]
        if letter is None and escape is None:
            pieces.append(found[0].encode())
        elif letter == "%":
            pieces.append(b"%")
        elif letter is not None and letter in PARTS:
            pieces.append(PARTS[letter][1])
        elif escape is not None and escape in _ESCAPES:
            pieces.append(_ESCAPES[escape])
        elif escape is not None and len(escape) == 3:
            pieces.append(bytes.fromhex(escape[1:]))
        else:
            raise ConfigError(
                f"-f does not know {found[0]!r}; "
                f"it knows %{', %'.join(PARTS)}, %% and \\n \\t \\r \\0 \\\\ \\xHH"
            )

    def made(record: ConsumerRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in pieces)

    return made


POLL_S = 1.0
#: Without --follow, a group member ends after this many seconds without a message. It cannot wait for the
#: end of every partition, because other members may be reading some of them.
GROUP_IDLE_S = 5.0
EARLIEST, LATEST = "earliest", "latest"


@with_connection
def consume(
    connection: ConnectionOptions,
    topics: Annotated[list[str], typer.Argument(help="Names of topics.", show_default=False)],
    group: Annotated[str | None, typer.Option(help="Read as a member of this group, and commit.")] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="'earliest', 'latest', ms since the epoch, or a date like 2026-01-31T12:00Z. Default: "
            "earliest; with --follow latest; with --group the group's committed offsets.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep reading at the end, until interrupted.")
    ] = False,
    max_records: Annotated[
        int | None, typer.Option("--max", min=1, max=sys.maxsize, help="Stop after this many messages.")
    ] = None,
    partition: Annotated[list[int] | None, typer.Option(help="Only these partitions; repeatable.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help=TAG_HELP)] = None,
    form: Annotated[
        str | None, typer.Option("--template", "-f", help=HELP, metavar="TEXT", show_default=False)
    ] = None,
    shown: Shown = Format.table,
) -> None:
    """Print committed messages: one line each, one JSON object per line with --format json, or as -f says.

    'escrowmq produce TOPIC --json' accepts the output of --format json, so the two together copy a topic.
    -f '%k %v\\n' prints keys and values unchanged; -f adds no line breaks of its own.
    """
    from escrowmq.replication.errors import ConfigError

    if group is not None and (partition or start not in (None, EARLIEST, LATEST)):
        raise ConfigError(
            "with --group, the group's committed offsets decide where reading starts; "
            "--from takes only earliest or latest then, and --partition is not allowed"
        )
    if form is not None and shown is Format.json:
        raise ConfigError("--format json and -f both say how records are printed; give only one of them")
    made = None if form is None else template(form)
    since = _parse_start(start or (LATEST if follow else EARLIEST))
    count = 0
    with connection.joined() as cluster:
        if group is not None:
            records = _as_member(cluster, group, topics, start or EARLIEST, follow, max_records, tag or None)
        else:
            alone = _alone(cluster, topics, since, set(partition or ()), follow, tag or None)
            records = itertools.islice(alone, max_records)
        for record in records:
            if made is None:
                print(_line(record, shown), flush=follow)
            else:
                _put(made(record), flush=follow)
            count += 1
    note(f"{count} message{'' if count == 1 else 's'}")


def _put(output: bytes, *, flush: bool) -> None:
    """Write bytes to the standard output, unchanged."""
    stream = sys.stdout.buffer
    stream.write(output)
    if flush:
        stream.flush()


def _parse_start(text: str) -> str | int:
    if text in (EARLIEST, LATEST):
        return text
    wanted = "earliest, latest, ms since the epoch or a date like 2026-01-31T12:00Z"
    found = number_or_date("--from", text, wanted)
    return found if isinstance(found, int) else int(found.timestamp() * 1000)


def _alone(
    cluster: Cluster,
    topics: list[str],
    since: str | int,
    only: set[int],
    follow: bool,
    tags: list[str] | None,
) -> Iterator[ConsumerRecord]:
    """Read every partition without a group, from ``since`` to the current ends (``follow``: without end)."""
    from escrowmq.replication.errors import UnknownTopic

    ends: dict[tuple[str, int], int] = {}
    for topic in topics:
        there = {p.partition: p.end for p in cluster.admin.describe_topic(topic).partitions}
        for partition in sorted(only or there):
            if partition not in there:
                raise UnknownTopic(topic, partition, len(there))
            ends[topic, partition] = there[partition]
    with cluster.consumer(auto_offset_reset=EARLIEST, tags=tags) as consumer:
        consumer.assign(list(ends))
        for topic, partition in ends:
            if isinstance(since, int):
                consumer.seek_to_time(topic, partition, since)
            elif since == LATEST:
                consumer.seek(topic, partition, ends[topic, partition])
        while follow or any(consumer.position(*tp) < end for tp, end in ends.items()):
            for record in consumer.poll(500, POLL_S):
                if follow or record.offset < ends[record.topic, record.partition]:
                    yield record


def _as_member(
    cluster: Cluster,
    group: str,
    topics: list[str],
    reset: str,
    follow: bool,
    limit: int | None,
    tags: list[str] | None,
) -> Iterator[ConsumerRecord]:
    """Read as a member of a group; commit a batch once its last record has been written out."""
    left = limit
    with cluster.consumer(group, topics, auto_offset_reset=reset, tags=tags) as consumer:
        quiet_since = time.monotonic()
        while follow or time.monotonic() - quiet_since < GROUP_IDLE_S:
            records = consumer.poll(500 if left is None else min(500, left), POLL_S)
            if not records:
                continue
            yield from records
            sys.stdout.flush()  # raises if the disk is full or nobody reads any longer
            consumer.commit()
            quiet_since = time.monotonic()
            if left is not None:
                left -= len(records)
                if left <= 0:
                    return


def _line(record: ConsumerRecord, shown: Format) -> str:
    if shown is Format.json:
        return json.dumps(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": None if record.key is None else text_or_base64(record.key),
                "value": text_or_base64(record.value),
                "headers": {name: text_or_base64(value) for name, value in record.headers.items()},
                "tx_id": record.tx_id,
            },
            ensure_ascii=False,
        )
    key = "" if record.key is None else f"{record.key.decode(errors='replace')}\t"
    address = f"{record.topic}/{record.partition}@{record.offset}"
    return f"{address}\t{when(record.timestamp)}\t{key}{record.value.decode(errors='replace')}"
