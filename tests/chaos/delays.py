"""Delayed messages of a round: what their processes wrote down, against what can be read in the end.

A message that was stored comes once; one whose answer was lost at most once; one that was cancelled never,
unless the answer to the cancellation was lost; none before its time.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from escrowmq.actors.client.router import Router
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format.codec import decode_rows
from tests.chaos.deployment import Deployment, until
from tests.history.events import identify

TOPIC, PARTITIONS = "later", 3
SENDING, STORED, CANCELLING = "sending", "stored", "cancelling"
CANCELLED, TOO_LATE = "cancelled", "too late"
#: The longest delay, and fail-overs on the way.
COME_S = 90.0
NAMED = 5


@dataclass(slots=True)
class Scheduled:
    """One message, as its sender knows it."""

    due_ms: int
    state: str = SENDING


def written(lines: Iterable[str]) -> dict[str, Scheduled]:
    """All messages of such a file; its last line may be torn."""
    found: dict[str, Scheduled] = {}
    for line in lines:
        if not line.endswith("\n"):
            break
        what, identity, due_ms = json.loads(line)
        if what == SENDING:
            found[identity] = Scheduled(due_ms)
        else:
            found[identity].state = what
    return found


def judge(sent: dict[str, Scheduled], read: Sequence[tuple[str, int]]) -> list[str]:
    """What is wrong. ``read``: id and timestamp of all messages that can be read in the end."""
    times: dict[str, list[int]] = {}
    for identity, timestamp_ms in read:
        times.setdefault(identity, []).append(timestamp_ms)
    wrong: dict[str, list[str]] = {}
    for identity, message in sent.items():
        came = times.get(identity, [])
        if len(came) > 1:
            wrong.setdefault("schedule-duplicate", []).append(identity)
        if came and min(came) < message.due_ms:
            wrong.setdefault("early", []).append(identity)
        if message.state == CANCELLED and came:
            wrong.setdefault("cancelled-delivered", []).append(identity)
        if message.state in (STORED, TOO_LATE) and not came:
            kind = "schedule-lost" if message.state == STORED else "cancel-lied"
            wrong.setdefault(kind, []).append(identity)
    if strangers := sorted(times.keys() - sent.keys()):
        wrong["never sent"] = strangers
    return [text for kind, ids in sorted(wrong.items()) for text in named(kind, ids)]


def named(kind: str, ids: Collection[str]) -> list[str]:
    """An anomaly with some of its messages; nothing if there are none."""
    return [f"{kind}: {len(ids)} messages: {sorted(ids)[:NAMED]}"] if ids else []


def settle(deployment: Deployment) -> None:
    """Wait until nothing waits for its time any more. Raises Stuck."""

    def come() -> bool:
        for group in deployment.cluster.admin.status(wait_s=5.0).groups:
            if group.timers is None or group.timers.waiting:
                raise Unavailable(f"delayed messages wait in group {group.group}: {group.timers}", 0.1)
        return True

    until("every delayed message is readable", come, COME_S)


def audit(deployment: Deployment, directory: Path) -> tuple[list[str], Counter[str]]:
    """What is wrong with the round's delayed messages, and figures."""
    sent, read = _sent(directory), _read(deployment)
    figures = Counter({"delayed messages": len(sent), "delayed messages read": len(read)})
    figures["delayed messages cancelled"] = sum(one.state == CANCELLED for one in sent.values())
    return judge(sent, read), figures


def early(deployment: Deployment, directory: Path) -> set[str]:
    """Messages that can be read although, by this process's clock, their time is still to come. Raises
    EscrowMQError if no replica answers."""
    read = {identity for identity, _ in _read(deployment)}
    now_ms = time.time() * 1000
    # Their times were written before they were sent, so they are known of all that was read.
    return {
        identity for identity, one in _sent(directory).items() if identity in read and one.due_ms > now_ms
    }


def _sent(directory: Path) -> dict[str, Scheduled]:
    sent: dict[str, Scheduled] = {}
    for path in sorted(directory.glob("*.delays")):
        with path.open() as lines:
            sent |= written(lines)
    return sent


def _read(deployment: Deployment) -> list[tuple[str, int]]:
    router = Router(deployment.info)
    places = [(TOPIC, partition) for partition in range(PARTITIONS)]
    try:
        bounds = OffsetReader(router).bounds(places, 30.0)
        groups = {place: router.placement.group_of(*place) for place in places}
    finally:
        router.close()
    read = []
    for place in places:
        where = bounds[place]
        if isinstance(where, Exception):
            raise where
        reading = PartitionReader(deployment.info, *place, *where, group=groups[place], timeout_s=15.0)
        with reading as blocks:
            for block in blocks:
                rows = decode_rows(block.rows, block.messages)
                read += [(identify(value), block.ts_ms) for _, value, _, _ in rows]
    return read
