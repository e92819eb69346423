"""What a transaction in bulk costs a replica: ``python -m benchmarks.replicas_work``.

Feeds PREPARE and COMMIT blocks, as ``send_transactions`` makes them, through the steps of a leader and of a
follower, one after the other in one thread: no Ray, no network, nobody to wait for. So only the work itself
is measured, in processor time of the thread, with the collector's thresholds of a broker. The memory of
settled transactions is filled first, because look-ups in a large table cost more than in a small one.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import os
import pstats
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c

from escrowmq.actors.producer.core import transaction_ids
from escrowmq.actors.producer.encoding.blocks import (
    Column,
    DecisionBlock,
    PrepareBlock,
    encode_decision,
    encode_prepare,
)
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_command, encode_row
from escrowmq.replication.host.body_prefetcher import BodyPrefetcher
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.log.journal import SegmentJournal
from escrowmq.replication.replica.admission import Admission
from escrowmq.replication.replica.agenda import NEVER, Duty
from escrowmq.replication.replica.entry_writing import Submission
from escrowmq.replication.replica.validation import level_needed, parse_request
from escrowmq.replication.state.machine import StateMachine

APP, TOPIC, PARTITIONS, BYTES = "bench", "t", 4, 256
#: As in ``ProducerConfig.request_bytes``: 96 KiB of rows and overhead.
BLOCK = 240
#: Blocks that are prepared in one entry and committed in the next one.
BLOCKS_PER_ENTRY = 4
#: The steps of a leader, and those of a follower.
LEADER = "take", "compose", "log", "apply", "answer", "tidy"
FOLLOWER = "log", "apply", "tidy"


@dataclass
class Costs:
    """Seconds of processor time by step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Count what is done in this block."""
        begin = time.thread_time()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.thread_time() - begin


class OneReplica:
    """State and log of one replica. Nothing is synced: that is the disk's work."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.journal = SegmentJournal(RealDisk(folder))
        self.state = StateMachine(0, 1)
        self.costs = Costs()
        self._begin()

    def _begin(self) -> None:
        frames = [ops.create_topic(TOPIC, {"partitions": PARTITIONS})]
        self.journal.add(b"\1", 1, 1)
        self.state.apply(1, b"")
        command = encode_command(frames, len(frames), 1_000_000)
        self.journal.add(command, 2, 1)
        self.state.apply(2, command)

    def tidy(self) -> None:
        """What the timer of a replica does ten times a second."""
        with self.costs.of("tidy"):
            self.state.transactions.tidy()
            self.state.due.tidy()

    def store(self, command: bytes) -> None:
        """Write the entry."""
        self.journal.add(command, self.journal.last_index + 1, 1)
        job = self.journal.begin_sync()
        assert job is not None
        job.run()
        self.journal.end_sync(job)


class Leader(OneReplica):
    """Takes requests until they are answered; ``commands``: the entries that followers will get."""

    def __init__(self, folder: Path, body_prefetcher: bool = False) -> None:
        """``body_prefetcher``: bodies of old messages are read in a thread, once that is started."""
        super().__init__(folder)
        self.commands: list[bytes] = []
        self.time_ms = 0  # of the thread that reads ahead
        self.body_prefetcher = BodyPrefetcher(
            self.state.timers, self.journal, leads=lambda: True, now_ms=lambda: self.time_ms
        )
        self.admission = Admission(
            self.state,
            self.journal,
            Duty("entries", lambda now: NEVER),
            open_max=2_000_000,
            queue_bytes_max=64 << 20,
            copy_bytes=0,
            timers_max=1_000_000,
            bodies=self.body_prefetcher if body_prefetcher else None,
        )

    def carry_out(self, requests: Sequence[bytes], now_ms: int) -> None:
        """These wait at the same time."""
        answers: list[Any] = []
        with self.costs.of("take"):
            for request in requests:
                decoded = parse_request(request)
                assert level_needed(decoded) <= self.state.level
                self.admission.offer(Submission(request, decoded, answers.append))
        while True:
            with self.costs.of("compose"):
                entry = self.admission.compose(now_ms)
            if entry is None:
                break
            with self.costs.of("log"):
                self.store(entry.command)
            self.commands.append(entry.command)
            with self.costs.of("apply"):
                results = self.state.apply_ops(self.journal.last_index, entry.now_ms, entry.ops)
            with self.costs.of("answer"):
                self.admission.applied(entry, results)
        assert len(answers) == len(requests)
        assert all(result[0] == 0 for answer in answers for result in answer[1]), answers


class Follower(OneReplica):
    """Gets the leader's entries."""

    def carry_out(self, command: bytes) -> None:
        with self.costs.of("log"):
            self.store(command)
        with self.costs.of("apply"):
            self.state.apply(self.journal.last_index, command)


class Client:
    """Blocks of transactions with one message each, in order, as ``send_transactions`` makes them."""

    def __init__(self, block: int, *, mixed: bool = False) -> None:
        self.block, self._mixed = block, mixed
        self._values = [os.urandom(BYTES) for _ in range(1024)]
        self._ids = transaction_ids("1.0.0-10.0.0.1-1700000000000-4711-1")
        self._turns = itertools.count(1)

    def prepare(self) -> tuple[list[str], bytes]:
        """Ids and request of the next block."""
        ids = list(itertools.islice(self._ids, self.block))
        rows = [encode_row(b"%08d" % n, self._values[n % 1024], None, tx_id) for n, tx_id in enumerate(ids)]
        columns: dict[tuple[str, int], Column] = {}
        for place, row in enumerate(rows):
            txs, sizes, column = columns.setdefault((TOPIC, place % 7 % PARTITIONS), ([], [], []))
            txs.append(place)
            sizes.append(len(row))
            column.append(row)
        digests = [google_crc32c.value(row) for row in rows]
        block = PrepareBlock(TOPIC, -1, 0, 0, ids, ids, digests, columns, sum(map(len, rows)))
        return ids, encode_prepare(APP, [block], lambda topic: 0, instance="producer", heard_ms=1 << 40)

    def turn(self) -> bool:
        """Every fifth time, which is ten times a second at full speed."""
        return next(self._turns) % 5 == 0

    def commits(self, prepared: Sequence[Sequence[str]]) -> list[bytes]:
        """The requests that commit these blocks: one for each, or mixed, as tasks of their own decide."""
        blocks = prepared
        if self._mixed and prepared:
            together = [tx_id for tx_ids in zip(*prepared, strict=True) for tx_id in tx_ids]
            blocks = [together[at : at + self.block] for at in range(0, len(together), self.block)]
        return [encode_decision(APP, [DecisionBlock(True, ids)]) for ids in blocks]


@dataclass(frozen=True)
class Work:
    """One measurement: transactions, and seconds of processor time by step."""

    transactions: int
    leader: dict[str, float]
    follower: dict[str, float]

    def lines(self) -> Iterator[str]:
        """Microseconds for each transaction."""
        for name, steps, seconds in (("leader", LEADER, self.leader), ("follower", FOLLOWER, self.follower)):
            us = {step: 1e6 * seconds[step] / self.transactions for step in steps}
            shown = "  ".join(f"{step} {cost:5.2f}" for step, cost in us.items())
            yield f"{name:>9}: {sum(us.values()):5.2f} us   {shown}"


def measure(folder: Path, client: Client, transactions: int, settled: int, blocks: int) -> Work:
    """Of ``transactions``, after ``settled`` others."""
    leader, follower = Leader(folder / "leader"), Follower(folder / "follower")
    run(leader, follower, client, settled, blocks)
    leader.costs, follower.costs = Costs(), Costs()
    gc.collect()
    done = run(leader, follower, client, transactions, blocks)
    return Work(done, leader.costs.seconds, follower.costs.seconds)


def run(leader: Leader, follower: Follower, client: Client, count: int, blocks: int) -> int:
    """At least ``count`` transactions: each entry commits what the one before it has prepared."""
    prepared: list[list[str]] = []
    done = 0
    while done < count or prepared:
        requests = client.commits(prepared)
        done += sum(map(len, prepared))
        prepared = []
        for _ in range(blocks if done < count else 0):
            ids, request = client.prepare()
            prepared.append(ids)
            requests.append(request)
        leader.carry_out(requests, leader.state.now_ms + 20)
        for command in leader.commands:
            follower.carry_out(bytes(bytearray(command)))  # its own copy, as from a link
        leader.commands.clear()
        if client.turn():
            leader.tidy()
            follower.tidy()
    assert leader.state.transactions.open_count() == 0 == follower.state.transactions.open_count()
    return done


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--transactions", type=int, default=200_000)
    parser.add_argument("--settled", type=int, default=300_000, help="before the measurement")
    parser.add_argument("--block", type=int, default=BLOCK, help="transactions of one request")
    parser.add_argument("--blocks", type=int, default=BLOCKS_PER_ENTRY, help="prepared in one entry")
    parser.add_argument("--mixed", action="store_true", help="decisions name transactions of several blocks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="instead: the functions that take the time")
    options = parser.parse_args(arguments)
    gc.set_threshold(200_000, 50, 1_000)  # as in a broker
    client = Client(options.block, mixed=options.mixed)
    asked = client, options.transactions, options.settled, options.blocks
    with tempfile.TemporaryDirectory() as folder:
        if options.profile:
            with cProfile.Profile() as profile:
                measure(Path(folder), *asked)
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
            return
        for number in range(options.rounds):
            (Path(folder) / str(number)).mkdir()
            for line in measure(Path(folder) / str(number), *asked).lines():
                print(line, flush=True)


if __name__ == "__main__":
    main()
