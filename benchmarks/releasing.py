"""What delayed messages cost a leader: ``python -m benchmarks.releasing``.

Schedules messages in batches, lets all become due in one second, and releases them; beside it, plain messages
in batches of the same size. One replica over real files in one thread, as in ``replicas_work``: no Ray, no
network, no sync. Costs are processor time of the thread; ``wall`` also has the waits for the disk.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.replicas_work import BYTES, LEADER, PARTITIONS, TOPIC, Costs, Follower, Leader
from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import encode_row

OWNER = timer_ops.owner_of("producer")
#: Messages whose requests wait at the same time.
AT_ONCE = 2_000


def requests_of(messages: int, batch: int, due_ms: int | None) -> list[bytes]:
    """Plain messages, or, with ``due_ms``, messages that become due in the second from then on."""
    row = encode_row(None, os.urandom(BYTES), None, None)
    found: list[bytes] = []
    for number in range(messages // batch):
        rows, partition = [row] * batch, number % PARTITIONS
        if due_ms is None:
            found.append(ops.message(TOPIC, partition, "producer", 0, -1, rows))
            continue
        times = [due_ms + (number * batch + n) * 7_919 % 1_000 for n in range(batch)]
        first = number * batch
        found.append(
            timer_ops.scheduled(TOPIC, partition, "producer", 0, -1, times, rows, OWNER, first, -1, 0)
        )
    return found


def carried_out(leader: Leader, requests: Sequence[bytes], batch: int) -> None:
    """So many at a time as would wait."""
    step = max(AT_ONCE // batch, 1)
    for at in range(0, len(requests), step):
        leader.carry_out(requests[at : at + step], leader.state.now_ms + 1)


def line(name: str, messages: int, costs: Costs, steps: Sequence[str], wall_s: float) -> str:
    """Microseconds of each message."""
    us = {step: 1e6 * costs.seconds.get(step, 0.0) / messages for step in steps}
    shown = "  ".join(f"{step} {cost:5.2f}" for step, cost in us.items() if cost)
    return f"{name:>10}: {sum(us.values()):6.2f} us   {shown}   wall {messages / wall_s:9,.0f}/s"


def measure(folder: Path, messages: int, batch: int) -> list[str]:
    """Plain messages, scheduling, and releasing, at a leader; and releasing at a follower."""
    leader, follower = Leader(folder / "leader"), Follower(folder / "follower")
    shown = []
    due_ms = leader.state.now_ms + 10_000_000
    for name, due in (("plain", None), ("scheduling", due_ms)):
        requests = requests_of(messages, batch, due)
        leader.costs, begin = Costs(), time.perf_counter()
        carried_out(leader, requests, batch)
        shown.append(line(name, messages, leader.costs, LEADER, time.perf_counter() - begin))
    for command in leader.commands:
        follower.carry_out(bytes(bytearray(command)))
    leader.commands.clear()
    gc.collect()
    leader.costs, follower.costs, begin = Costs(), Costs(), time.perf_counter()
    now_ms = due_ms + 1_000
    while leader.state.timers.counts.total:  # with much to put in order a call may find nothing
        leader.carry_out([], now_ms)
        now_ms = max(leader.state.now_ms, now_ms) + 1
    shown.append(line("releasing", messages, leader.costs, LEADER, time.perf_counter() - begin))
    begin = time.perf_counter()
    for command in leader.commands:
        follower.carry_out(bytes(bytearray(command)))
    shown.append(line("follower", messages, follower.costs, ("log", "apply"), time.perf_counter() - begin))
    assert follower.state.timers.counts.total == 0
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=100, help="messages of one request")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    gc.set_threshold(200_000, 50, 1_000)  # as in a broker
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            (Path(folder) / str(number)).mkdir()
            for text in measure(Path(folder) / str(number), options.messages, options.batch):
                print(text, flush=True)


if __name__ == "__main__":
    main()
