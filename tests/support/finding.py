"""A search against a scan: anomaly ``find-missed``.

One partition in a cluster in memory, and a ``Finder`` over it with small blocks, whose files outlive it. The
model is a scan of all rows with the ordinary decoder.
"""

from __future__ import annotations

import random
from typing import Any

from escrowmq import Message
from escrowmq.cluster.testing.memory_disk import MemoryDisk
from escrowmq.replication.errors import DiskFull
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.find_rows import IN_HEADER
from escrowmq.replication.format.find_table import BUSINESS_KEY, KEY, TX_ID
from escrowmq.replication.host.finding import Finder, FindFiles, Sought
from escrowmq.replication.host.reads import Reads
from escrowmq.replication.message_headers import keys_of
from escrowmq.testing import InMemoryCluster

BLOCK = 16
TOPIC = "t"


class FullDisk(MemoryDisk):
    """A disk that is full when the test wants it."""

    full = False

    def open(self, name: str, create: bool = False) -> Any:
        if create and self.full:
            raise DiskFull("full")
        return super().open(name, create)


class SearchWorld:
    """One life of a partition. ``rng`` draws what happens."""

    def __init__(self, cluster: InMemoryCluster, rng: random.Random, cache_bytes: int = 1 << 20) -> None:
        self.cluster, self.rng, self._cache_bytes = cluster, rng, cache_bytes
        cluster.admin.create_topic(TOPIC)
        broker: Any = cluster.network.brokers[0]
        self.running = broker.parts.running
        self.disk, self.sent = FullDisk(), 0
        self.damaged = False
        self.restart()

    def restart(self) -> None:
        """The process begins anew: only the files are left."""
        self.files = FindFiles(self.disk, self._cache_bytes)
        self.finder = Finder(
            self.running.replica.state,
            Reads(self.running).fetch,
            lambda: self.files,
            share=1.0,
            name="find",
            own_thread=False,
            block_offsets=BLOCK,
        )

    def send(self, count: int) -> None:
        """Plain messages and transactions whose keys come again and again."""
        with self.cluster.producer("app") as producer:
            sending = []
            for n in range(self.sent, self.sent + count):
                key = None if n % 5 == 0 else b"k%d" % self.rng.randrange(6)
                keys = [f"b{self.rng.randrange(6)}"] * (n % 3) + ["each"] * (n % 2)
                message = Message(TOPIC, b"v", key, {"h": b"%d" % (n % 4)}, keys=keys)
                if n % 7:
                    sending.append(producer.send(message))
                    continue
                with producer.transaction(tx_id=f"t{n % 4}-{n}") as transaction:
                    transaction.send(message)
                    transaction.send(Message(TOPIC, b"w", key))
                    transaction.prepare()
            for future in sending:
                future.result(0)
        self.sent += count

    def trim(self) -> None:
        """Retention."""
        start, end = self.bounds()
        self.cluster.admin.trim_topic(TOPIC, self.rng.randint(start, end), 0)

    def recreate(self) -> None:
        """The topic is deleted, and another one gets its name."""
        self.cluster.admin.delete_topic(TOPIC)
        self.cluster.admin.create_topic(TOPIC)

    def damage(self) -> None:
        """A file is cut, emptied or has a flipped bit, as after a crash or on a bad disk."""
        names = self.disk.names()
        if names:
            file = self.disk.open(self.rng.choice(names))
            at = self.rng.randrange(file.size()) if file.size() else 0
            if file.size() and self.rng.random() < 0.7:
                file.write_at(at, bytes([file.read(at, 1)[0] ^ 1 << self.rng.randrange(8)]))
            else:
                file.truncate(at)

    def bounds(self) -> tuple[int, int]:
        """``(start, end)`` of the partition."""
        return Reads(self.running).partition_bounds(TOPIC)[0]

    def step(self) -> None:
        """One thing that can happen."""
        draw = self.rng.random()
        if draw < 0.35:
            self.send(self.rng.randrange(1, 25))
        elif draw < 0.45:
            self.trim()
        elif draw < 0.49:
            self.recreate()
        elif draw < 0.59:
            self.restart()
        elif draw < 0.69:
            self.damage()
        elif draw < 0.73:
            self.finder.sweep()
        elif draw < 0.77:
            self.disk.full = not self.disk.full
        self.look()

    def look(self) -> None:
        """Some questions; what they find is what a scan finds."""
        start, end = self.bounds()
        for kind, needle in self.questions():
            low = self.rng.choice([0, start, self.rng.randint(start, end)])
            until = self.rng.choice([end, self.rng.randint(start, end)])
            limit = self.rng.choice([1, 3, 1_000])
            assert self.found(kind, needle, low, until, limit) == self.scanned(kind, needle, low, until), (
                f"find-missed: {kind} {needle!r} in [{low}, {until})"
            )

    def questions(self) -> list[tuple[int, bytes]]:
        """One of each kind."""
        rng = self.rng
        return [
            (KEY, b"k%d" % rng.randrange(7)),
            (TX_ID, b"t%d-%d" % (0, rng.randrange(self.sent + 1) // 28 * 28)),
            (BUSINESS_KEY, rng.choice([b"each", b"b%d" % rng.randrange(7)])),
            (IN_HEADER, b"%d" % rng.randrange(5)),
        ]

    def found(self, kind: int, needle: bytes, at: int, until: int, limit: int) -> list[int]:
        """The offsets that searching finds, by as many calls as it takes."""
        topic_id = self.running.replica.state.topics.topics[TOPIC].info.topic_id
        sought, offsets = Sought(TOPIC, 0, topic_id, kind, needle, "h"), list[int]()
        while at < until:
            answer = self.finder.find(sought, at, until, limit, 0.0)
            assert answer.code == 0 and answer.reached > at and len(answer.offsets) <= limit
            offsets += answer.offsets
            at = answer.reached
        return offsets

    def scanned(self, kind: int, needle: bytes, at: int, until: int) -> list[int]:
        """The offsets that a look at every row finds."""
        start, end = self.bounds()
        offsets, at = list[int](), max(at, start)
        while at < min(until, end):
            ((_, _, _, _, _, runs, blob),) = Reads(self.running).fetch([(TOPIC, 0, at)], 1, 0.0)
            base, count, _, _ = runs[0]
            for offset, row in enumerate(decode_rows(blob, count), base):
                key, _, headers, tx_id = row
                has = {
                    KEY: key == needle,
                    TX_ID: (tx_id or "").encode() == needle,
                    BUSINESS_KEY: needle in keys_of((headers or {}).get("keys", b"")),
                    IN_HEADER: (headers or {}).get("h") == needle,
                }
                if at <= offset < until and has[kind]:
                    offsets.append(offset)
            at = base + count
        return offsets
