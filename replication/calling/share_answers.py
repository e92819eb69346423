"""What share consumers ask brokers for leases, and the answers. Leader only; see ``Reply`` for its refusals.

``share_acquire(group, member, topics, max_records, max_bytes, lease_s, wait_s, call, received)``
    ``("ok", [row, ...], lease_s, again_s, number)``: see ``AcquiredRow``. Leases run for ``lease_s``, which
    may be less than was asked for. An answer without rows came after ``wait_s``, or at once if too many calls
    wait already: then the caller asks again after ``again_s``.

    ``call`` rises with each call of the member to this broker group, and ``received`` is the ``number`` of
    the last answer that had one: what came in others is handed out again at once. Both -1: the member does
    not tell. ``number`` -1: nothing was handed out.
``share_extend(group, member, places, lease_s)``, ``share_release(group, member, places, call)``
    ``("ok", places)``: what the member does not hold, or no longer. See ``Place``. ``call``: the number of
    the last call that was answered; what a later one has brought is not released, since the request may be
    late. -1: the member does not tell.

``member`` is 16 random bytes as hex, new for each consumer. Acks and nacks are requests, as sends are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

#: Topic, partition, and ranges of offsets as ``[first, last, ...]``, sorted and disjoint.
Place: TypeAlias = tuple[str, int, Sequence[int]]


class AcquiredRow(NamedTuple):
    """What was handed out of one partition: sent by position, as a plain tuple.

    ``code``: a ``ResultCode``. Unless it is OK there is nothing: UNKNOWN_SHARE if the group has not begun to
    read this partition (send a SHARE_ACK with ``create``), UNKNOWN_TOPIC, and with partition -1, if no such
    topic is there. ``runs`` and ``blob`` are those of a fetch: whole runs ``(base, count, ts_ms, bytes)``, of
    which only the messages in ``leased`` were handed out: ``[first, last, expiries, ...]``, sorted.
    ``expiries``: how many leases of these messages have run out before, as far as this leader knows: a record
    is at the attempt that its header states (1 if it has none), plus this. ``topic_id``: belongs into the
    acks.
    """

    topic: str
    partition: int
    code: int
    topic_id: int = 0
    runs: Sequence[tuple[int, int, int, int]] = ()
    blob: bytes | memoryview = b""
    leased: Sequence[int] = ()
