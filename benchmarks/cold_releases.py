"""How long releases of old messages hold a leader's thread: ``python -m benchmarks.cold_releases``.

Each delayed message lies in an entry of its own, between plain messages, in segments that were sealed long
before it is due: so it is read and copied when it is released. The same releases are composed with the log in
the page cache, and without it (``POSIX_FADV_DONTNEED``, as after some hours of other work); each with bodies
read where they are needed, and read ahead in a thread. What counts is one call of ``compose``: nothing else
happens in that thread meanwhile, heartbeats included. ``took``: until all are released; the thread that
reads ahead begins ``--lead`` seconds before.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.releasing import OWNER
from benchmarks.replicas_work import TOPIC, Leader
from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.host.body_prefetcher import AHEAD_MS

BYTES = 1_024
#: After they were scheduled.
DUE_MS = 10_000_000


def filled(folder: Path, messages: int, beside: int, body_prefetcher: bool) -> Leader:
    """A leader with so many messages, each in an entry with ``beside`` bytes of others, all due at once."""
    leader = Leader(folder, body_prefetcher)
    row = encode_row(None, os.urandom(BYTES), None, None)
    rows = [encode_row(None, os.urandom(BYTES), None, None) for _ in range(max(beside // BYTES, 1))]
    due_ms = leader.state.now_ms + DUE_MS
    for number in range(messages):
        time_ms = due_ms + number * 7_919 % 1_000
        frame = timer_ops.scheduled(TOPIC, 0, "p", 0, -1, [time_ms], [row], OWNER, number, -1, 0)
        leader.carry_out([ops.message(TOPIC, 1, "p", 0, -1, rows), frame], leader.state.now_ms + 1)
        leader.commands.clear()
    while leader.journal.segment_start(leader.journal.last_index) != leader.journal.last_index:
        leader.carry_out([ops.message(TOPIC, 1, "p", 0, -1, rows * 8)], leader.state.now_ms + 1)
        leader.commands.clear()
    return leader


def dropped(folder: Path) -> None:
    """Take the log out of the page cache."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_bytes() -> int:
    """What this process has had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def released(leader: Leader) -> tuple[list[float], float]:
    """Release everything that is due in one second: seconds of each call of ``compose``, and of all."""
    held: list[float] = []
    at_ms = leader.state.now_ms + DUE_MS + 1_000
    begin = time.perf_counter()
    while leader.state.timers.counts.total:
        now_ms = leader.time_ms = at_ms + int((time.perf_counter() - begin) * 1000)
        before = time.perf_counter()
        entry = leader.admission.compose(now_ms)
        held.append(time.perf_counter() - before)
        if entry is None:
            time.sleep(0.001)
            continue
        leader.store(entry.command)
        results = leader.state.apply_ops(leader.journal.last_index, entry.now_ms, entry.ops)
        leader.admission.applied(entry, results)
    return held, time.perf_counter() - begin


def line(name: str, messages: int, held: Sequence[float], took_s: float, read: int) -> str:
    """What one run shows."""
    long = [one for one in held if one > 0.001]
    return (
        f"{name:>26}: compose p50 {1000 * statistics.median(long or [0.0]):6.1f} ms, "
        f"longest {1000 * max(held):6.1f} ms, {1e6 * sum(held) / messages:6.1f} us a message, "
        f"took {took_s:5.2f} s, {read >> 20} MiB read from the disk"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=4_096)
    parser.add_argument("--beside", type=int, nargs="+", default=[4 << 10, 32 << 10, 256 << 10])
    parser.add_argument("--lead", type=float, default=AHEAD_MS / 1000, help="s that the thread has, before")
    parser.add_argument("--folder", type=Path, default=None, help="where to write (default: a temporary one)")
    options = parser.parse_args(arguments)
    gc.set_threshold(200_000, 50, 1_000)  # as in a broker
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for beside in options.beside:
            messages = min(options.messages, (1 << 30) // beside)
            print(f"{messages} messages, each in an entry with {beside >> 10} KiB of others", flush=True)
            for body_prefetcher in (False, True):
                for cold in (False, True):
                    name = (
                        f"{'on the disk' if cold else 'in the cache'}{', ahead' if body_prefetcher else ''}"
                    )
                    place = Path(folder) / f"{name} {beside}"
                    leader = filled(place, messages, beside, body_prefetcher)
                    if cold:
                        dropped(place)
                    before = read_bytes()
                    if body_prefetcher:
                        leader.time_ms = leader.state.now_ms + DUE_MS - AHEAD_MS
                        leader.body_prefetcher.start()
                        time.sleep(options.lead)
                    held, took_s = released(leader)
                    print(line(name, messages, held, took_s, read_bytes() - before), flush=True)
                    leader.body_prefetcher.stop()
                    shutil.rmtree(place)


if __name__ == "__main__":
    main()
