"""Hands the rows of ``send_many`` and ``send_table`` over to the producer's queues, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from escrowmq.actors.producer.core import ProducerCore
from escrowmq.actors.producer.delivery_columns import (
    NOT_DELAYED,
    Delivery,
    timed,
    times_of_rows,
    times_of_table,
)
from escrowmq.actors.producer.many import Columns, Headers, check_topic
from escrowmq.actors.producer.record_batch import Ending, RecordBatch
from escrowmq.actors.producer.runs import Piece
from escrowmq.actors.producer.sent_many import SentMany
from escrowmq.replication.errors import Closed, NotSupported, Overloaded


def send_many(
    core: ProducerCore,
    topic: str,
    values: Iterable[bytes],
    keys: Iterable[bytes | None] | None,
    headers: Headers | Iterable[Headers],
    partition: int | None,
    delivery: Delivery = NOT_DELAYED,
    given_up: Callable[[], bool] = lambda: False,
) -> SentMany:
    """See ``Producer.send_many``. ``given_up()``: nobody waits any more, so nothing more is handed over."""
    core.check_open()
    count = core.encoder.partitions(check_topic(topic))
    serialize, pack = core.encoder.serialize, core.encoder.pack
    columns = Columns(core.config, topic, count, values, keys, headers, partition, serialize, pack)
    times = times_of_rows(core.delays, delivery, len(columns))
    pieces = timed(columns.pieces(partial(core.gathers, topic)), times)
    return _hand_over_all(core, topic, pieces, len(columns), given_up)


def send_table(
    core: ProducerCore,
    topic: str,
    table: Any,
    value: str,
    key: str | None,
    partition: int | None,
    delivery: Delivery = NOT_DELAYED,
    given_up: Callable[[], bool] = lambda: False,
) -> SentMany:
    """See ``Producer.send_table``; ``given_up`` as for ``send_many``."""
    try:
        from escrowmq.actors.producer.table_rows import TableRows
    except ImportError as error:
        raise NotSupported(f"send_table needs pyarrow and numpy; install them: {error}") from error
    core.check_open()
    count = core.encoder.partitions(check_topic(topic))
    rows = TableRows(core.config, topic, count, table, value, key, partition, core.encoder.pack_column)
    times = times_of_table(core.delays, table, delivery, len(rows))
    pieces = timed(rows.pieces(partial(core.gathers, topic)), times)
    return _hand_over_all(core, topic, pieces, len(rows), given_up)


def _hand_over_all(
    core: ProducerCore, topic: str, pieces: Iterable[Piece], total: int, given_up: Callable[[], bool]
) -> SentMany:
    """Hands all pieces over, waiting for room before each for up to ``buffer_wait_s``.

    If there is no room for the first one, raises Overloaded; Closed if the producer was closed. Later, the
    rows that were not handed over have that error.
    """
    sent = SentMany()
    for piece in pieces:
        if given_up():
            break
        try:
            parcels = _hand_over(core, topic, piece)
        except (Overloaded, Closed) as error:
            if not len(sent):
                raise
            rest = RecordBatch(topic, 0)
            rest.end(Ending(rest, 0, total - len(sent)).failed(error.with_traceback(None)))
            sent.add(rest, range(len(sent), total))
            break
        for parcel, run in zip(parcels, piece, strict=True):
            sent.add(parcel, run.numbers)
    return sent


def _hand_over(core: ProducerCore, topic: str, piece: Piece) -> list[RecordBatch]:
    size = sum(run.size for run in piece)
    parcels = core.hand_over(topic, piece, size)
    if parcels is None:
        deadline = core.clock() + core.config.buffer_wait_s
        while parcels is None:
            core.wait_for_room(size, deadline)
            parcels = core.hand_over(topic, piece, size)
    return parcels
