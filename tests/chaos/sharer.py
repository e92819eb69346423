"""A share consumer process: ``python -m tests.chaos.sharer SETTINGS``.

It handles messages one by one: most are acked, some fail once and some always, by their ids. Sometimes the
process ends within a handler. Everything is recorded before it is sent.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import deque
from collections.abc import Sequence
from zlib import crc32

from escrowmq import Cluster, EscrowMQError, LeaseLost, ShareConsumer, ShareRecord
from escrowmq.actors.consumer.records import attempt_of
from escrowmq.replication.format.share_ops import BY_TABLE
from tests.chaos.client import ClientSettings, Parent, connected, crash, say_ready
from tests.history.events import Recorder, identify

GROUP = "workers"
MAX_ATTEMPTS, DELAYS_MS, LEASE_S = 4, (200, 500, 1000), 3.0
#: Of a hundred messages: those that fail always, and those that fail at their first attempt.
ALWAYS, ONCE = 2, 8
#: A poll may return what came for a call of one of the polls before.
CALLS_BEFORE = 3


class Sharer:
    """Polls, handles and settles until the end."""

    def __init__(
        self, cluster: Cluster, settings: ClientSettings, recorder: Recorder, parent: Parent
    ) -> None:
        self.cluster, self.settings, self.recorder, self.parent = cluster, settings, recorder, parent
        self.rng = random.Random(f"{settings.seed}/{settings.name}")
        self._asked = deque[int](maxlen=CALLS_BEFORE)

    def run(self) -> None:
        """The first one of the group makes it a share group, which begins at the start of its topics."""
        while not self.parent.ending.is_set():
            try:
                queue = self.cluster.share_consumer(
                    GROUP,
                    sorted(self.settings.topics),
                    auto_offset_reset="earliest",
                    lease_s=LEASE_S,
                    prefetch_records=0,
                )
            except EscrowMQError:
                time.sleep(0.2)
                continue
            with queue:
                self._work(queue)

    def _work(self, queue: ShareConsumer) -> None:
        while not self.parent.ending.is_set():
            self._asked.append(
                self.recorder.invoke("share-acquire", group=GROUP, member=self.settings.name, since_ms=0)
            )
            try:
                records = queue.poll(20, 0.3)
            except EscrowMQError:
                continue
            if records:
                self._taken(records)
                self._settle(queue, records)

    def _taken(self, records: Sequence[ShareRecord]) -> None:
        op = self._asked.popleft()
        # ``record.attempt`` counts leases that ran out, too: the last attempt may come three times, each time
        # with a higher number, and is still the last.
        # Which leader it was is not told; leases of several are not held against each other then.
        self.recorder.ok(
            op,
            leader=f"{self.settings.name}/{op}",
            lease_ms=int(1000 * LEASE_S),
            records=[
                [r.topic, r.partition, r.offset, identify(r.value), attempt_of(r), r.timestamp]
                for r in records
            ],
        )

    def _settle(self, queue: ShareConsumer, records: Sequence[ShareRecord]) -> None:
        acks = []
        for record in records:
            if self.rng.random() < self.settings.crashes and not self.parent.resting.is_set():
                crash()
            if fails(identify(record.value), attempt_of(record)):
                self._nack(queue, record)
            else:
                place = [record.topic, record.partition, record.offset]
                acks.append(self.recorder.invoke("share-ack", group=GROUP, records=[place]))
                queue.ack(record)
        try:
            queue.flush()
        except EscrowMQError as error:
            for op in acks:
                self.recorder.unknown(op, repr(error))
        else:
            for op in acks:
                self.recorder.ok(op)

    def _nack(self, queue: ShareConsumer, record: ShareRecord) -> None:
        op = self.recorder.invoke(
            "share-nack",
            group=GROUP,
            records=[[record.topic, record.partition, record.offset]],
            delays_ms=[BY_TABLE],
            since_ms=record.timestamp,
        )
        try:
            queue.nack(record, reason="chaos")
        except LeaseLost as error:
            self.recorder.fail(op, repr(error))
        except EscrowMQError as error:
            self.recorder.unknown(op, repr(error))
        else:
            self.recorder.ok(op)


def fails(identity: str, attempt: int) -> bool:
    """Whether the handler of this message fails at this attempt."""
    drawn = crc32(identity.encode()) % 100
    return drawn < ALWAYS or (attempt == 1 and drawn < ALWAYS + ONCE)


def main() -> int:
    """Run until the parent closes the standard input."""
    settings = ClientSettings(**json.loads(sys.argv[1]))
    parent, recorder = Parent(), settings.recorder()
    with connected(settings) as cluster:
        say_ready()
        Sharer(cluster, settings, recorder, parent).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
