"""A replica with a share group: what consumers send, and what became of their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import decode_rows, encode_row
from escrowmq.replication.format.share_ops import BY_TABLE
from tests.support.single import Single

START_MS = 2_000_000
RETRY, DEAD, REPLIES = "__retry.g", "__dead.g", "__replies.shop"
MEMBER, OTHER = "aa" * 16, "bb" * 16


class Shared(Single):
    """A share group ``g`` over ``t``, which has its internal topics."""

    def begin(self, *values: str, delays_ms: Sequence[int] = (10, 20), **others: int | str) -> None:
        self.topic(partitions=1)
        self.now_ms = START_MS
        for name in (RETRY, DEAD, REPLIES):
            self.submit(ops.create_topic(name, {"partitions": 1}, 0, 0))
        self.configure(delays_ms=list(delays_ms), **others)
        self.submit(share_ops.share_create("g", "t", 0, share_ops.EARLIEST, self.id_of("t")))
        if values:
            self.put(*values)

    def configure(self, **values: int | str | list[int]) -> None:
        assert self.submit(share_ops.group_settings("g", values))[0][0] == 0

    def id_of(self, topic: str) -> int:
        return self.state.topics.topics[topic].info.topic_id

    def put(self, *values: str, headers: dict[str, bytes] | None = None) -> None:
        rows = [encode_row(b"k", value.encode(), headers, None) for value in values]
        self.submit(ops.message("t", 0, "p", 0, -1, rows))

    def acks(self, *ranges: int, topic: str = "t") -> bytes:
        return share_ops.share_ack("g", topic, 0, ranges, self.id_of(topic))

    def nacks(
        self,
        *offsets: int,
        delay_ms: int = BY_TABLE,
        topic: str = "t",
        reason: str = "no",
        member: str = MEMBER,
        stream: bool = False,
    ) -> bytes:
        many, id_ = len(offsets), self.id_of(topic)
        return share_ops.nack(
            "g", topic, 0, offsets, [delay_ms] * many, [reason] * many, member, "me", id_, stream=stream
        )

    def nack(self, *offsets: int, **others: Any) -> list[Any]:
        (result,) = self.submit(self.nacks(*offsets, **others))
        return result  # type: ignore[no-any-return]

    def done(self, topic: str = "t") -> list[int]:
        """Start and ranges."""
        pair = self.state.shares.get("g", self.state.topics.topics[topic].partitions[0])
        assert pair is not None
        return [pair.start, *pair.flat()]

    def rows(self, topic: str) -> list[tuple[str, dict[str, str]]]:
        """Values and headers of what is readable."""
        ((_, _, code, _, _, runs, blob),) = self.replica.fetch([(topic, 0, 0)], 1 << 20)
        assert code == 0
        rows = decode_rows(blob, sum(count for _, count, *_ in runs))
        return [
            (v.decode(), {k: h.decode(errors="replace") for k, h in (hs or {}).items()})
            for _, v, hs, _ in rows
        ]

    def headers(self, topic: str) -> list[dict[str, str]]:
        return [headers for _, headers in self.rows(topic)]

    def pass_ms(self, ms: int) -> None:
        for _ in range(ms):
            self.send()
