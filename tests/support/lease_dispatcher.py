"""One replica that leads and hands out: what share consumers ask it, and what they get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import decode_rows, encode_row
from escrowmq.replication.replica.lease_dispatcher import AcquireRequest, HandedOut
from tests.support.single import Single

RETRY, DEAD = "__retry.g", "__dead.g"
ME, OTHER = "aa" * 16, "bb" * 16
LEASE_MS = 1_000
#: Timers run ten times a second.
TICK_MS = 100


class Desk(Single):
    """A share group ``g`` over the partitions of ``t``, which has its internal topics."""

    def begin(self, partitions: int = 1, **group: int | str | list[int]) -> None:
        self.topic(partitions=partitions)
        self.now_ms = 2_000_000
        for name in (RETRY, DEAD):
            self.submit(ops.create_topic(name, {"partitions": 1}, 0, 0))
        self.submit(share_ops.group_settings("g", {"delays_ms": [100], **group}))
        for number in range(partitions):
            self.submit(share_ops.share_create("g", "t", number, share_ops.EARLIEST, self.id_of("t")))

    def id_of(self, topic: str) -> int:
        return self.state.topics.topics[topic].info.topic_id

    def put(self, *values: str, partition: int = 0) -> None:
        """Each in an entry of its own, so that they are handed out one by one."""
        for value in values:
            self.submit(
                ops.message("t", partition, "p", 0, -1, [encode_row(None, value.encode(), None, None)])
            )
        self.send()

    def ask(
        self,
        member: str = ME,
        wanted: int = 100,
        *,
        topics: Sequence[str] = ("t",),
        wait_ms: int = 0,
        told: tuple[int, int] = (-1, -1),
        group: str = "g",
    ) -> list[Any]:
        """Fills with the answer, perhaps later."""
        answers: list[Any] = []
        until_ms = self.now_ms + wait_ms
        ask = AcquireRequest(
            group, member, tuple(topics), wanted, 1 << 20, LEASE_MS, until_ms, answers.append, *told
        )
        self.replica.lease_dispatcher.acquire(ask, self.now_ms)
        self.replica.pump(self.now_ms)
        return answers

    def take(self, member: str = ME, wanted: int = 100, **others: Any) -> list[tuple[str, str, int, int]]:
        """Topic, value, offset and expiries of what it gets at once."""
        ((status, rows),) = self.ask(member, wanted, **others)
        assert status == "ok"
        return [found for row in rows for found in self.read(row)]

    def read(self, row: HandedOut) -> Iterator[tuple[str, str, int, int]]:
        assert row.code == 0, row
        by_offset: dict[int, str] = {}
        for run in row.runs:
            blob = self.journal.read_range(run.log_index, run.pos, run.size)
            for n, (_, value, *_) in enumerate(decode_rows(blob, run.messages)):
                by_offset[run.base + n] = value.decode()
        for first, last, expiries in row.taken:
            for offset in range(first, last + 1):
                yield row.topic, by_offset[offset], offset, expiries

    def values(self, member: str = ME, wanted: int = 100) -> list[str]:
        return [value for _, value, _, _ in self.take(member, wanted)]

    def ack(self, *ranges: int, topic: str = "t", partition: int = 0) -> Any:
        (result,) = self.submit(share_ops.share_ack("g", topic, partition, ranges, self.id_of(topic)))
        return result

    def nack(self, *offsets: int, member: str = ME, topic: str = "t", delay_ms: int = 0) -> Any:
        many, id_ = len(offsets), self.id_of(topic)
        frame = share_ops.nack("g", topic, 0, offsets, [delay_ms] * many, ["no"] * many, member, "me", id_)
        (result,) = self.submit(frame)
        return result

    def pass_ms(self, ms: int) -> None:
        for _ in range(0, ms, TICK_MS):
            self.now_ms += TICK_MS
            self.replica.on_timer(self.now_ms)
            self.replica.pump(self.now_ms)
