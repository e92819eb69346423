"""One life of a cluster: ``python -m tests.timers_million.life SETTINGS``. SIGKILL ends it, except the last.

It starts Ray and three replicas on a directory, sends what is left to send, and reads everything from the
start on, again in each life. It prints an event a line; the last life writes what it has read to a file.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import escrowmq
from tests.timers_million.audit import Plan

TOPIC, PARTITIONS = "later", 4
VALUE = b"%09d" + b"." * 91
#: Batches without an answer, and messages a second that are sent and read on a slow machine.
UNDER_WAY, SENT_PER_S = 4, 25_000
#: From the start of the first life to the first message; a later life takes about as long to start.
START_S = 8.0


@dataclass(frozen=True)
class LifeSettings:
    """``first``: the next number to send. ``total``: to be sent in all. ``plan``: None in the first life,
    which makes it. ``last``: nothing kills this life."""

    directory: str
    total: int
    batch: int
    first: int
    span_ms: int
    kills_before: int
    plan: list[int] | None
    last: bool

    def encode(self) -> str:
        return json.dumps(asdict(self))


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def send(cluster: escrowmq.Cluster, settings: LifeSettings, plan: Plan) -> None:
    """The messages that are left; each batch is announced before it is sent."""
    waiting: deque[tuple[int, Any]] = deque()
    with cluster.producer(app="later") as producer:
        for first in range(settings.first, settings.total, settings.batch):
            numbers = range(first, first + settings.batch)
            say("sending", first=first)
            many = producer.send_many(
                TOPIC, [VALUE % n for n in numbers], deliver_at=[plan.due_ms(n) for n in numbers]
            )
            waiting.append((first, many))
            while len(waiting) >= UNDER_WAY:
                _await(*waiting.popleft())
        while waiting:
            _await(*waiting.popleft())
    say("sent")


def _await(first: int, many: Any) -> None:
    many.result(120)
    say("acknowledged", first=first)


def read(cluster: escrowmq.Cluster, settings: LifeSettings, plan: Plan, sender: Thread) -> None:
    """Everything, until nothing waits any more. A message that is read before its time is told at once."""
    found = list[tuple[int, int]]()
    with cluster.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([(TOPIC, partition) for partition in range(PARTITIONS)])
        while True:
            ended = not sender.is_alive() and not _waiting(cluster)
            table = consumer.poll_arrow(timeout_s=0.5)
            now_ms = time.time() * 1000
            if not table.num_rows:
                if ended:
                    break
                continue
            numbers = [int(value[:9]) for value in table.column("value").to_pylist()]
            times = table.column("timestamp").cast("int64").to_pylist()
            found += zip(numbers, times, strict=True)
            early = [n for n in numbers if plan.due_ms(n) > now_ms]
            say(
                "read",
                count=len(found),
                late_ms=round(now_ms - max(map(plan.due_ms, numbers))),
                early=early[:5],
            )
    (Path(settings.directory) / "read.json").write_text(json.dumps(found))
    say("finished")


def _waiting(cluster: escrowmq.Cluster) -> int:
    try:
        (group,) = cluster.admin.status(wait_s=5.0).groups
    except escrowmq.EscrowMQError:
        return 1
    return 1 if group.timers is None else group.timers.waiting


def main() -> int:
    settings = LifeSettings(**json.loads(sys.argv[1]))
    directory = Path(settings.directory)
    began = time.time()
    # Ray's Unix sockets allow no long path.
    ray = {
        "num_cpus": 4,
        "temp_dir": directory / f"r{settings.kills_before}",
        "object_store_bytes": 128 << 20,
    }
    with escrowmq.start_local(groups=1, replicas=3, data_dir=directory / "data", ray=ray) as cluster:
        if settings.plan is None:
            cluster.admin.create_topic(TOPIC, partitions=PARTITIONS)
            ahead_s = settings.total / SENT_PER_S + START_S
            plan = Plan(round(1000 * (time.time() + ahead_s)), settings.span_ms)
        else:
            plan = Plan(*settings.plan)
        say("started", took_s=time.time() - began, plan=[plan.begin_ms, plan.span_ms])
        sender = Thread(target=send, args=(cluster, settings, plan), daemon=True)
        sender.start()
        read(cluster, settings, plan, sender)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
