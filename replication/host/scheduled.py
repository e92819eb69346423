"""Lists the delayed messages of a topic that wait in one broker group. Nothing here is in the replica's
thread but one look at the state: the store may be read by any thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from escrowmq.replication.calling.answers import Reply, ScheduledMessages
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.timers.record import KEY_BYTES, RECORD, TIME_MAX, last_key

#: Records read at a time, and in one call: with many messages of other topics, the caller asks again.
READ_AT_ONCE, READ_MAX = 4_096, 200_000


class Scheduled:
    """Questions about one replica's waiting messages. Thread-safe."""

    def __init__(self, running: RunningReplica) -> None:
        self._running = running

    def messages(self, topic: str, before_ms: int | None, limit: int, after: bytes = b"") -> Reply:
        """``("ok", ScheduledMessages | None)``, in order of time; leader only. None: it has no such topic.
        ``before_ms``: only those that can be read before this time. ``after``: ``reached`` of an earlier
        answer."""
        timers = self._running.replica.state.timers

        def places() -> tuple[dict[int, int], bytes] | None:
            known = self._running.replica.state.topics.topics.get(topic)
            if known is None:
                return None
            return {p.slot: number for number, p in known.partitions.items()}, timers.released

        status = self._running.led(places)
        if status[0] != "ok" or status[1] is None:
            return status
        slots, released = status[1]
        until_ms = TIME_MAX if before_ms is None else before_ms - 1
        reached, end = max(after, released), last_key(until_ms)
        rows: list[Sequence[int]] = []
        read = 0
        while slots and reached < end and len(rows) < limit and read < READ_MAX:
            with self._running.leaving():
                records, reached = timers.store.listed(reached, until_ms, READ_AT_ONCE)
            read += len(records)
            for record in records:
                time_ms, slot, owner, ordinal, _, _, size = RECORD.unpack(record)
                if slot in slots:
                    rows.append((slots[slot], time_ms, owner, ordinal, size))
                    if len(rows) == limit:
                        reached = record[:KEY_BYTES]
                        break
            time.sleep(0)  # lets the replica's own thread run
        done = not slots or reached >= end
        return "ok", ScheduledMessages.of(rows, reached=b"" if done else reached)
