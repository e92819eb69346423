"""The cost of TLS between replicas: a Raft group with TLS and one without, in turns, in the same process.

``python -m benchmarks.tls_cost`` prints for both groups the entries per second, the CPU time per entry (all
three replicas and the proposing thread together), and the latency of single entries. It also prints their
ratio: the median and the quartiles of the ratios within rounds, since the two groups of a round run directly
after each other. The ratio of CPU times hardly depends on other load on the machine; the ratio of rates does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from escrowmq.replication.raft.node import RaftConfig
from tests.support.certificates import Authority
from tests.support.raft_group import RaftGroup, RaftReplica

#: Three replicas that share one interpreter lock sometimes delay each other; that is not measured here.
PATIENT = RaftConfig(election_min_s=5.0, election_max_s=6.0)


def flood(leader: RaftReplica, size: int, count: int, window: int) -> tuple[float, float]:
    """(entries of ``size`` bytes per second, CPU ms per entry), with ``window`` entries in flight."""
    places, done = threading.Semaphore(window), threading.Semaphore(0)
    command, lost = b"\0" + bytes(size), list[object]()

    def settled(result: object, applied: bool | None) -> None:
        if applied is not True:  # the machine is too busy: the leader lost its leadership
            lost.append(result)
        places.release()
        done.release()

    started, busy = time.perf_counter(), time.process_time()
    for _ in range(count):
        places.acquire()
        leader.driver.submit(lambda: leader.driver.node.propose(command, settled))
    for _ in range(count):
        done.acquire()
    busy = time.process_time() - busy
    if lost:
        raise SystemExit(
            f"the leader stepped down and lost {len(lost)} entries: run this on a quieter machine"
        )
    return count / (time.perf_counter() - started), 1000 * busy / count


def one_by_one(leader: RaftReplica, count: int) -> float:
    """Median milliseconds of an entry, each proposed after the one before."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        assert leader.propose(b"\0" + bytes(1024)).wait() is True
        times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    figures: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as path:
        authority = Authority(Path(path) / "authority")
        tls = {rid: authority.issue(f"r{rid}") for rid in range(3)}
        with (
            RaftGroup(Path(path) / "plain", config=PATIENT) as plain,
            RaftGroup(Path(path) / "tls", tls=tls, config=PATIENT) as sealed,
        ):
            for number in range(rounds):
                turns = [plain.leader(), sealed.leader()]
                order = (0, 1) if number % 2 == 0 else (1, 0)  # other load affects both alike
                for what, size, count in (("1 KiB", 1 << 10, 4_000), ("256 KiB", 256 << 10, 150)):
                    rates = {which: flood(turns[which], size, count, 64) for which in order}
                    for place, name in enumerate(("entries/s of", "CPU ms per")):
                        pair = (rates[0][place], rates[1][place])
                        figures.setdefault(f"{name} {what}", []).append(pair)
                waits = {which: one_by_one(turns[which], 100) for which in order}
                figures.setdefault("ms, one at a time", []).append((waits[0], waits[1]))
    print(f"{'':24}{'plain':>10}{'TLS':>10}{'TLS/plain':>11}{'quartiles':>14}   (medians of {rounds} rounds)")
    for name, both in figures.items():
        plain_one, tls_one = (statistics.median(column) for column in zip(*both, strict=True))
        low, ratio, high = statistics.quantiles((t / p for p, t in both), n=4)
        print(f"{name:24}{plain_one:10.3f}{tls_one:10.3f}{ratio:11.2f}{low:8.2f}..{high:.2f}")


if __name__ == "__main__":
    main()
