"""Rows that a leader writes into internal topics, and the headers that it adds to them.

A copy of a message keeps its key, value, headers and transaction id. Reserved headers say where it comes from
and why it is there; text in UTF-8. In a topic of users they mean nothing, whoever set them, but for those of
``message_headers``. Brokers decode rows only here: when a message has failed, or a reply is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from escrowmq.replication.format.codec import encode_fields
from escrowmq.replication.format.packing import StoredRow
from escrowmq.replication.message_headers import REPLY_TO, TAG

#: Topic, partition, offset and timestamp of the message that was sent, with ``/`` in between.
ORIGIN: Final = "escrowmq-origin"
#: The consumer group that has failed, or is done.
GROUP: Final = "escrowmq-group"
#: In a retry, which attempt its delivery is (from 1); elsewhere, how many there were.
ATTEMPT: Final = "escrowmq-attempt"
#: When it failed for the first time, in ms since the epoch.
FIRST_FAILED: Final = "escrowmq-first-failed"
REASON: Final = "escrowmq-reason"
#: Who said that it failed.
BY: Final = "escrowmq-by"
#: The value is the bytes of what is stored in place of a row.
UNDECODABLE: Final = "escrowmq-undecodable"
#: Of a reply: what became of the message.
OUTCOME: Final = "escrowmq-outcome"
DONE, FAILED = "done", "failed"
#: What the sender has set stays: consumers also select retries by their tags.
_SENDERS: Final = frozenset((REPLY_TO, TAG))
_PREFIX: Final = "escrowmq-"
#: Of bytes that are no rows, no more than this is kept.
UNDECODABLE_BYTES_MAX: Final = 1 << 20
_NOT_A_ROW = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_row = msgspec.msgpack.Decoder(StoredRow).decode


class Origin(NamedTuple):
    """The address of the message that was sent. ``timestamp`` in ms since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class History(NamedTuple):
    """What the headers of a row in a group's own internal topic say. ``first_failed_ms`` -1: never failed,
    or redriven since."""

    origin: Origin | None = None
    attempt: int = 1
    first_failed_ms: int = -1


def history(headers: Mapping[str, bytes] | None) -> History:
    """Of a row in an internal topic. What cannot be read counts as not told."""
    if not headers:
        return History()
    attempt, failed = _number(headers.get(ATTEMPT)), _number(headers.get(FIRST_FAILED))
    return History(_origin(headers.get(ORIGIN)), max(attempt, 1), failed)


def _number(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else -1


def _origin(text: bytes | None) -> Origin | None:
    fields = (text or b"").split(b"/")
    if len(fields) != 4 or not all(field.isdigit() and len(field) < 20 for field in fields[1:]):
        return None
    partition, offset, timestamp = map(int, fields[1:])
    return Origin(fields[0].decode(errors="replace"), partition, offset, timestamp)


def split_rows(blob: bytes, count: int) -> list[bytes]:
    """The bytes of each of ``count`` rows that are joined in ``blob``. If these are no rows, each is all of
    the bytes, cut to ``UNDECODABLE_BYTES_MAX``."""
    try:
        return [bytes(raw) for raw in _decode_raw(b"".join((b"\xdd", count.to_bytes(4, "big"), blob)))]
    except _NOT_A_ROW:
        return [blob[:UNDECODABLE_BYTES_MAX]] * count


def decode_row(row: bytes) -> StoredRow | None:
    """None: it is no row."""
    try:
        return _decode_row(row)
    except _NOT_A_ROW:
        return None


def with_headers(row: bytes, found: StoredRow | None, added: Mapping[str, str], *, of_leader: bool) -> bytes:
    """A row (``found``: as it was decoded) with these reserved headers, and of others those that its sender
    has set: the reply address and the tag. ``of_leader``: a leader has written it, so it has the mark of what
    is no row if that is true."""
    ours = {name: text.encode() for name, text in added.items()}
    if found is None:
        return encode_fields((None, row, {UNDECODABLE: b"1", **ours}, None))
    theirs = {k: v for k, v in (found.headers or {}).items() if not k.startswith(_PREFIX) or k in _SENDERS}
    if of_leader and UNDECODABLE in (found.headers or ()):
        ours[UNDECODABLE] = b"1"
    fields: tuple[Any, ...] = (found.key, found.value, {**theirs, **ours}, found.tx_id)
    if found.packing is not msgspec.UNSET:
        fields = (*fields, found.packing)
    return encode_fields(fields)


def origin_text(origin: Origin) -> str:
    """``Origin`` as it is in its header."""
    return "/".join(map(str, origin))
