"""The id of a delayed message, by which it can be cancelled: its place among all that wait, as text.

``topic/partition/time/owner/ordinal/check``. The first five name the message; a client knows them without
asking. The check is over them and the cluster's id, so an id that was mistyped, or comes from another
cluster, is told from one whose message can be read already.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c

from escrowmq.replication.errors import InvalidMessage

#: Limits of the numbers in a request.
_PARTITION_MAX, _TIME_MAX = (1 << 31) - 1, (1 << 53) - 1
_OWNER_MAX, _ORDINAL_MAX = (1 << 64) - 1, (1 << 32) - 1


class ScheduleId(NamedTuple):
    """What an id says.

    ``time_ms``: from when on the message can be read, in ms since the epoch. ``owner`` stands for the
    transaction or the producer, ``ordinal`` counts what that one scheduled.
    """

    topic: str
    partition: int
    time_ms: int
    owner: int
    ordinal: int

    def text(self, cluster_id: str) -> str:
        """The id."""
        body = f"{self.topic}/{self.partition}/{self.time_ms}/{self.owner:016x}/{self.ordinal}"
        return f"{body}/{_check(body, cluster_id)}"

    @classmethod
    def parse(cls, text: object, cluster_id: str) -> ScheduleId:
        """The inverse of :meth:`text`. Raises InvalidMessage for anything else."""
        if not isinstance(text, str):
            raise InvalidMessage(f"a schedule id is a str, not {type(text).__name__}")
        parts = text.rsplit("/", 5)
        try:
            topic, numbers, check = parts[0], parts[1:5], parts[5]
            partition, time_ms, ordinal = int(numbers[0]), int(numbers[1]), int(numbers[3])
            found = cls(topic, partition, time_ms, int(numbers[2], 16), ordinal)
        except (ValueError, IndexError):
            raise InvalidMessage(f"{text!r:.300} is no schedule id; {_WHERE}") from None
        if found.text(cluster_id) != text or not found._fits():
            where = "was mistyped, or comes from another cluster"
            raise InvalidMessage(f"schedule id {text!r:.300} (check {check:.8}) {where}; {_WHERE}")
        return found

    def _fits(self) -> bool:
        return (
            bool(self.topic)
            and 0 <= self.partition <= _PARTITION_MAX
            and 0 <= self.time_ms <= _TIME_MAX
            and 0 <= self.owner <= _OWNER_MAX
            and 0 <= self.ordinal <= _ORDINAL_MAX
        )


_WHERE = "take it from the result of a send or a transaction, or from 'escrowmq schedule list'"


def _check(body: str, cluster_id: str) -> str:
    text = f"{cluster_id}\0{body}".encode(errors="surrogatepass")
    return f"{google_crc32c.value(text):08x}"
