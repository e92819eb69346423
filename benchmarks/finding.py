"""How fast messages are found: ``python -m benchmarks.finding``.

One replica's log, state and finder over real files in one process: no Ray, no network, no leader. The first
search reads all messages (cold), later ones read the files that it left (warm), and so does the first one
of a new process (restarted). Every search is for a key that one message has, in a partition of this size.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.replicas_work import TOPIC, OneReplica
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_command, encode_row
from escrowmq.replication.format.find_rows import IN_HEADER
from escrowmq.replication.format.find_table import KEY, TX_ID
from escrowmq.replication.host.finding import Finder, FindFiles, Sought
from escrowmq.replication.log.disk import RealDisk
from escrowmq.replication.model import NO_ID
from escrowmq.replication.replica import fetching
from escrowmq.replication.replica.fetching import FetchRequest, FetchResult

#: Messages of one batch, and batches of one entry.
BATCH, BATCHES = 500, 8
#: Searches whose times make up a figure.
SEARCHES = 200


class Searched(OneReplica):
    """A replica with ``messages`` of ``size`` bytes in one partition."""

    def __init__(self, folder: Path, messages: int, size: int) -> None:
        super().__init__(folder)
        value = os.urandom(size)
        for first in range(0, messages, BATCH * BATCHES):
            frames: list[bytes] = []
            for at in range(first, min(messages, first + BATCH * BATCHES), BATCH):
                rows = [encode_row(_key(n), value, None, _tx(n)) for n in range(at, at + BATCH)]
                frames.append(ops.message(TOPIC, 0, "", 0, -1, rows))
            command = encode_command(frames, len(frames), 1_000_000 + first)
            self.store(command)
            self.state.apply(self.journal.last_index, command)

    def finder(self, folder: Path, share: float) -> Finder:
        """As a process that has just started has it."""

        def fetch(requests: list[FetchRequest], max_bytes: int, wait_s: float) -> list[FetchResult]:
            return fetching.fetch(self.state, self.journal, requests, max_bytes)

        def files() -> FindFiles:
            return FindFiles(RealDisk(folder), 1 << 30)

        return Finder(self.state, fetch, files, share=share, name="find")


def _key(number: int) -> bytes:
    return b"key-%09d" % number


def _tx(number: int) -> str:
    return f"{number:032d}"


def search(finder: Finder, kind: int, needle: bytes, messages: int) -> list[int]:
    """The offsets that one search finds, by as many calls as it takes."""
    sought, at, found = Sought(TOPIC, 0, NO_ID, kind, needle, "h"), 0, list[int]()
    while at < messages:
        answer = finder.find(sought, at, messages, 1_000, 1.0)
        at, found = answer.reached, found + list(answer.offsets)
    return found


def timed(work: Callable[[], object]) -> float:
    """Seconds that this takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def warm(finder: Finder, messages: int) -> tuple[float, float]:
    """Median and the worst of a hundred, in ms, of searches for keys and transactions."""
    rng, took = random.Random(1), list[float]()
    for n in range(SEARCHES):
        number = rng.randrange(messages)
        kind, needle = (KEY, _key(number)) if n % 2 else (TX_ID, _tx(number).encode())
        began = time.perf_counter()
        assert search(finder, kind, needle, messages) == [number]
        took.append((time.perf_counter() - began) * 1_000)
    took.sort()
    return took[SEARCHES // 2], took[SEARCHES * 99 // 100]


def measure(folder: Path, messages: int, size: int, share: float) -> None:
    """Prints the figures."""
    replica = Searched(folder / "log", messages, size)
    files = folder / "find"
    finder = replica.finder(files, share)
    cpu = time.process_time()
    cold_s = timed(lambda: search(finder, KEY, _key(messages // 2), messages))
    cpu = time.process_time() - cpu
    print(f"cold: {messages / cold_s:,.0f} messages/s, {cpu / messages * 1e6:.2f} us of processor time each")
    middle, worst = warm(finder, messages)
    print(f"warm: {middle:.1f} ms, p99 {worst:.1f} ms over {messages:,} messages")
    finder.stop()
    finder = replica.finder(files, share)
    first_s = timed(lambda: search(finder, KEY, _key(messages // 3), messages))
    print(f"restarted: the first search takes {first_s * 1_000:.1f} ms")
    part = min(messages, 1_000_000)
    header_s = timed(lambda: search(finder, IN_HEADER, b"nothing has this", part))
    print(f"headers: {part / header_s:,.0f} messages/s")
    finder.stop()
    stored = sum(file.stat().st_size for file in files.iterdir())
    print(f"files: {stored / messages:.1f} bytes a message")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000, help="in the partition (10,000,000)")
    parser.add_argument("--bytes", type=int, default=100, help="of a value (100)")
    parser.add_argument("--share", type=float, default=0.05, help="broker.find_cpu_share (0.05)")
    parser.add_argument("--folder", type=Path, help="where the files go for the time of the run")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(f"{options.messages:,} messages of {options.bytes} bytes, share {options.share}")
        messages = options.messages - options.messages % BATCH
        measure(Path(folder), messages, options.bytes, options.share)


if __name__ == "__main__":
    main()
