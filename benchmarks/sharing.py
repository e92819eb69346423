"""What share groups cost a leader: ``python -m benchmarks.sharing``.

Plain messages are taken in, handed out to a share group, and acknowledged or nacked, in several ways. One
replica over real files in one thread, as in ``replicas_work``: no Ray, no network, no sync. Costs are
processor time of the thread for each message, by step; ``read`` is done by other threads of a broker.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.releasing import carried_out
from benchmarks.replicas_work import BYTES, LEADER, PARTITIONS, TOPIC, Costs, Leader
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.internal_topics import retry_topic
from escrowmq.replication.replica.fetching import read_runs
from escrowmq.replication.replica.lease_dispatcher import AcquireRequest, HandedOut, LeaseDispatcher

MEMBER = "0" * 32
STEPS = ("acquire", "read", *LEADER)
#: Messages of one plain request, and those that a member asks for.
SENT, ASKED = 100, 500
#: Of handlers side by side: acks that were gathered in 5 ms at 10,000 a second, in the order of their ends.
GATHERED, HANDLERS = 50, 64
#: Milliseconds of the group's time for each call: a lease never runs out.
CALL_MS, LEASE_MS = 1, 1 << 40


class Ready:
    """Stands for a Raft node that a majority has just answered."""

    ready = True

    def check_lead(self) -> int:
        return 0

    def leads_since(self, check: Any) -> bool:
        return True


class SharingLeader(Leader):
    """Hands messages out, too. Each ``name`` is a share group of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.desk = LeaseDispatcher(self.state, lambda frame, partition: None, lambda: ("not_leader",))
        self.desk.attach(Ready())
        self.admission.shares.leases = self.desk.leases

    def begin(self, name: str) -> None:
        """The group reads all partitions from their ends, and its failures come back after a day."""
        topics = self.state.topics.topics
        requests = [
            ops.create_topic(retry_topic(name), {"partitions": 1}, 0, 0),
            share_ops.group_settings(name, {"delays_ms": [86_400_000]}),
        ]
        for number, partition in topics[TOPIC].partitions.items():
            requests.append(share_ops.share_create(name, TOPIC, number, share_ops.LATEST, partition.topic_id))
        self.carry_out(requests, self.state.now_ms + CALL_MS)

    def acquire(self, name: str, wanted: int) -> list[HandedOut]:
        """As a call of one member, with the reading of the messages."""
        answers: list[Any] = []
        now_ms = self.state.now_ms
        with self.costs.of("acquire"):
            self.desk.acquire(
                AcquireRequest(name, MEMBER, (TOPIC,), wanted, 8 << 20, LEASE_MS, now_ms, answers.append),
                now_ms,
            )
            self.desk.step(now_ms)
        ((_, rows),) = answers
        with self.costs.of("read"):
            for row in rows:
                b"".join(read_runs(self.journal, row.runs))
        return list(rows)


def plain(messages: int) -> list[bytes]:
    """Requests with so many messages."""
    row = encode_row(None, os.urandom(BYTES), None, None)
    return [
        ops.message(TOPIC, number % PARTITIONS, "producer", 0, -1, [row] * SENT)
        for number in range(messages // SENT)
    ]


def handed_out(leader: SharingLeader, name: str) -> Iterator[list[HandedOut]]:
    """All that there is, call by call."""
    while rows := leader.acquire(name, ASKED):
        yield rows


def in_batches(name: str, rows: Sequence[HandedOut], topic_id: int) -> list[bytes]:
    """All of an answer at once, by partition."""
    return [
        share_ops.share_ack(
            name, row.topic, row.number, [n for taken in row.taken for n in taken[:2]], topic_id
        )
        for row in rows
    ]


def as_handlers_end(name: str, rows: Sequence[HandedOut], topic_id: int) -> list[bytes]:
    """As ``HANDLERS`` end that began in order: what comes together has gaps."""
    rng, found = random.Random(0), list[bytes]()
    for row in rows:
        offsets = [n for first, last, _ in row.taken for n in range(first, last + 1)]
        offsets.sort(key=lambda offset: offset + rng.random() * HANDLERS)
        for at in range(0, len(offsets), GATHERED):
            flat = list[int]()
            for offset in sorted(offsets[at : at + GATHERED]):
                if flat and flat[-1] == offset - 1:
                    flat[-1] = offset
                else:
                    flat += (offset, offset)
            found.append(share_ops.share_ack(name, row.topic, row.number, flat, topic_id))
    return found


def alone(name: str, rows: Sequence[HandedOut], topic_id: int) -> list[bytes]:
    """A request for each message."""
    return [
        share_ops.share_ack(name, row.topic, row.number, [n, n], topic_id)
        for row in rows
        for first, last, _ in row.taken
        for n in range(first, last + 1)
    ]


def failures(name: str, rows: Sequence[HandedOut], topic_id: int) -> list[bytes]:
    """All fail, in requests as gathered as acks are."""
    found = []
    for row in rows:
        offsets = [n for first, last, _ in row.taken for n in range(first, last + 1)]
        for at in range(0, len(offsets), GATHERED):
            some = offsets[at : at + GATHERED]
            delays, reasons = [share_ops.BY_TABLE] * len(some), ["no"] * len(some)
            found.append(
                share_ops.nack(name, row.topic, row.number, some, delays, reasons, MEMBER, "bench", topic_id)
            )
    return found


WAYS = {
    "acks of 500": in_batches,
    "acks as 64 handlers end": as_handlers_end,
    "acks one by one": alone,
    "nacks": failures,
}


def line(name: str, messages: int, costs: Costs) -> str:
    """Microseconds of each message, and how many a second that would be with the thread to itself."""
    us = {step: 1e6 * costs.seconds.get(step, 0.0) / messages for step in STEPS}
    total = sum(cost for step, cost in us.items() if step != "read")
    shown = "  ".join(f"{step} {cost:5.2f}" for step, cost in us.items() if cost >= 0.005)
    return f"{name:>24}: {total:6.2f} us  {1e6 / total:9,.0f}/s   {shown}"


def measure(folder: Path, messages: int) -> list[str]:
    """Sending, and each way to end a message."""
    shown = list[str]()
    for way, requests_of in WAYS.items():
        leader = SharingLeader(folder / way.replace(" ", "-"))
        leader.begin("g")
        leader.costs = Costs()
        carried_out(leader, plain(messages), SENT)
        if not shown:
            shown.append(line("plain, sent", messages, leader.costs))
        topic_id = leader.state.topics.topics[TOPIC].info.topic_id
        gc.collect()
        leader.costs, leader.commands = Costs(), []
        for rows in handed_out(leader, "g"):
            requests = requests_of("g", rows, topic_id)
            for at in range(0, len(requests), 16):
                leader.carry_out(requests[at : at + 16], leader.state.now_ms + CALL_MS)
        assert leader.desk.leases.messages == 0
        shown.append(line(way, messages, leader.costs))
        log_bytes = sum(map(len, leader.commands))
        shown[-1] += f"   log {log_bytes / messages:.1f} B"
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args(arguments)
    gc.set_threshold(200_000, 50, 1_000)  # as in a broker
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            (Path(folder) / str(number)).mkdir()
            for text in measure(Path(folder) / str(number), options.messages):
                print(text, flush=True)


if __name__ == "__main__":
    main()
