"""Copies of messages that a group could not handle: where they go, when they come back, what they say.

Rows are read from the log in runs, as they were stored together. A few runs are kept, since messages that
were handed out together often fail together.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final, NamedTuple, Protocol

from google_crc32c import value as crc32c

from escrowmq.replication.errors import OffsetGone
from escrowmq.replication.format import forwarded
from escrowmq.replication.format.codec import encode_fields
from escrowmq.replication.format.forwarded import (
    History,
    Origin,
    decode_row,
    history,
    split_rows,
    with_headers,
)
from escrowmq.replication.format.internal_topics import (
    dead_topic,
    is_internal,
    owner_problem,
    replies_topic,
    retry_topic,
)
from escrowmq.replication.format.packing import StoredRow
from escrowmq.replication.format.settings import KEEP, GroupSettings
from escrowmq.replication.format.share_ops import BY_TABLE, REASON_BYTES_MAX, REJECT
from escrowmq.replication.message_headers import REPLY_TO
from escrowmq.replication.state.index import Run
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition

#: Bytes of the runs that are kept; one larger run is kept alone.
KEPT_BYTES: Final = 8 << 20
#: What a pause of the table may be longer, so that what failed together does not come back together.
JITTER: Final = 0.1


class Copy(NamedTuple):
    """A row for an internal topic. ``time_ms`` 0: readable at once. ``counted``: the counter's name.
    ``may_lack``: without the topic it is left out."""

    topic: str
    time_ms: int
    row: bytes
    counted: str
    may_lack: bool = False
    origin: Origin | None = None  # of a dead letter


class Log(Protocol):
    """What is needed of the journal."""

    def read_range(self, index: int, pos: int, size: int) -> bytes: ...


class Rows:
    """Rows of stored messages."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._kept: OrderedDict[tuple[int, int, int], list[bytes]] = OrderedDict()
        self._kept_bytes = 0

    def forget(self) -> None:
        """Leadership is lost."""
        self._kept.clear()
        self._kept_bytes = 0

    def read(self, partition: Partition, offset: int) -> tuple[bytes, Run]:
        """The row of an offset, and where it is. Raises OffsetGone."""
        runs = partition.index.runs_from(offset, 1)
        if not runs:
            raise OffsetGone(f"{partition.topic}/{partition.number}: offset {offset} is gone")
        run = runs[0]
        address = run.log_index, run.pos, run.size
        rows = self._kept.get(address)
        if rows is None:
            rows = split_rows(bytes(self._log.read_range(*address)), run.messages)
            self._kept[address] = rows
            self._kept_bytes += run.size
            while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
                (_, _, size), _ = self._kept.popitem(last=False)
                self._kept_bytes -= size
        else:
            self._kept.move_to_end(address)
        return rows[offset - run.base], run


class Failures:
    """Decides what becomes of a message that has failed, by its group's settings. In the leader's thread."""

    def __init__(self, state: StateMachine, rows: Rows) -> None:
        self._state, self._rows = state, rows

    def copies(
        self,
        group: str,
        partition: Partition,
        offset: int,
        delay_ms: int,
        reason: str,
        by: str,
        now_ms: int,
        *,
        attempt: int,
        redrives: bool,
    ) -> list[Copy]:
        """What is written in its place. ``attempt``: the one that has failed, unless the message's headers
        tell of more. Raises OffsetGone."""
        row, run = self._rows.read(partition, offset)
        found = decode_row(row)
        past = _history(partition, offset, run, found)
        past = past._replace(attempt=max(past.attempt, attempt))
        assert past.origin is not None
        headers = {forwarded.ORIGIN: forwarded.origin_text(past.origin), forwarded.GROUP: group}
        made = partial(with_headers, row, found, of_leader=is_internal(partition.topic))
        if redrives:
            headers |= {forwarded.ATTEMPT: "1", forwarded.BY: by}
            return [Copy(retry_topic(group), 0, made(headers), "redriven")]
        settings = self._state.shares.settings(group)
        failed_ms = past.first_failed_ms if past.first_failed_ms >= 0 else now_ms
        headers |= {forwarded.FIRST_FAILED: str(failed_ms), forwarded.REASON: _cut(reason), forwarded.BY: by}
        if self._comes_back(settings, past, delay_ms, now_ms - failed_ms):
            headers[forwarded.ATTEMPT] = str(past.attempt + 1)
            time_ms = _time_ms(settings, past, delay_ms, now_ms)
            return [Copy(retry_topic(group), time_ms, made(headers), "retried")]
        headers[forwarded.ATTEMPT] = str(past.attempt)
        copies = self._failed_reply(found, headers)
        if settings.dead_letters == KEEP:
            copies.append(Copy(dead_topic(group), 0, made(headers), "dead", origin=past.origin))
        return copies

    @staticmethod
    def _comes_back(settings: GroupSettings, past: History, delay_ms: int, age_ms: int) -> bool:
        return (
            delay_ms != REJECT
            and past.attempt < settings.max_attempts
            and (settings.max_age_ms < 0 or age_ms < settings.max_age_ms)
        )

    @staticmethod
    def _failed_reply(found: StoredRow | None, headers: dict[str, str]) -> list[Copy]:
        """What its sender is told, if it wants to hear."""
        wanted = (found.headers or {}).get(REPLY_TO) if found is not None else None
        if found is None or wanted is None:
            return []
        app = wanted.decode(errors="replace")
        if owner_problem("app", app) is not None:
            return []
        told = {**headers, forwarded.OUTCOME: forwarded.FAILED}
        row = encode_fields((found.key, b"", {k: v.encode() for k, v in told.items()}, found.tx_id))
        return [Copy(replies_topic(app), 0, row, "replied", may_lack=True)]

    def headers_of_reply(self, group: str, partition: Partition, offset: int, outcome: str) -> dict[str, str]:
        """Of what a group says about a message that it has handled."""
        past = History(Origin(partition.topic, partition.number, offset, -1))
        if is_internal(partition.topic):
            row, run = self._rows.read(partition, offset)
            past = _history(partition, offset, run, decode_row(row))
        elif runs := partition.index.runs_from(offset, 1):
            past = _history(partition, offset, runs[0], None)
        assert past.origin is not None
        return {
            forwarded.ORIGIN: forwarded.origin_text(past.origin),
            forwarded.GROUP: group,
            forwarded.ATTEMPT: str(past.attempt),
            forwarded.OUTCOME: outcome,
        }


def _history(partition: Partition, offset: int, run: Run, found: StoredRow | None) -> History:
    """What came before this failure. Only leaders write into internal topics: there the headers are true."""
    past = History()
    if found is not None and is_internal(partition.topic):
        past = history(found.headers)
    if past.origin is None:
        past = past._replace(origin=Origin(partition.topic, partition.number, offset, run.time_ms))
    return past


def _time_ms(settings: GroupSettings, past: History, delay_ms: int, now_ms: int) -> int:
    """When it comes back; 0: at once."""
    if delay_ms == BY_TABLE:
        delay_ms = settings.delay_ms(past.attempt)
        delay_ms += int(delay_ms * JITTER * crc32c(repr(past).encode()) / (1 << 32))
    return now_ms + delay_ms if delay_ms else 0


def _cut(reason: str) -> str:
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
