"""One search at one replica, compared with all rows that this replica has in the asked range.

What is there and not found is ``find-missed``; what is found and is not there, or not so, is ``find-false``.
The rows are read and compared here without any of the search's own code.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from escrowmq.replication.calling.finding_answers import FoundRows
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.find_rows import IN_HEADER, split_rows
from escrowmq.replication.format.find_table import BUSINESS_KEY, KEY, ORIGIN, TX_ID
from escrowmq.replication.format.forwarded import ORIGIN as ORIGIN_HEADER
from escrowmq.replication.host.finding import Sought
from escrowmq.replication.message_headers import HEADER, keys_of
from escrowmq.replication.state.topics import Partition
from tests.sim.clients.searching import BLOCK
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication

#: How far a search looks before and behind the message that it is about.
AROUND = (1, 5, 40)
LIMITS = (1, 3, 1_000)
NOWHERE = 0.1  # share of searches for what no message has


class Row(NamedTuple):
    """A message that can be read at this replica."""

    offset: int
    time_ms: int
    raw: bytes
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    tx_id: str | None


class Needle(NamedTuple):
    """What is looked for: see ``Sought``."""

    kind: int
    text: bytes
    name: str = ""

    def is_in(self, row: Row) -> bool:
        """Whether this message has it."""
        if self.kind == KEY:
            return row.key == self.text
        if self.kind == TX_ID:
            return row.tx_id == self.text.decode()
        if self.kind == BUSINESS_KEY:
            return HEADER in row.headers and self.text in keys_of(row.headers[HEADER])
        return row.headers.get(ORIGIN_HEADER if self.kind == ORIGIN else self.name) == self.text


def rows_between(app: BrokerApplication, partition: Partition, low: int, high: int) -> list[Row] | None:
    """All messages of ``[low, high)``; None if they cannot be read here now: they are damaged, or this
    replica has yet to repeat a retention that its log has been through."""
    found: list[Row] = []
    while low < high:
        request = partition.topic, partition.number, low, high, partition.topic_id
        try:
            ((_, _, code, _, _, runs, blob),) = app.replica.fetch([request], 1 << 30)
        except EscrowMQError:
            return None
        if code or not runs:
            return None
        at = 0
        for base, count, time_ms, size in runs:
            part = bytes(blob[at : at + size])
            at += size
            raws = split_rows(part, count)
            for n, (key, value, headers, tx_id) in enumerate(decode_rows(part, count)):
                row = Row(base + n, time_ms, bytes(raws[n]), key, value, headers or {}, tx_id)
                if low <= row.offset < high:
                    found.append(row)
        low = runs[-1][0] + runs[-1][1]
    return found


def search(rng: random.Random, name: str, app: BrokerApplication, partition: Partition) -> bool:
    """Ask the replica called ``name``. False: there was nothing to ask, or it cannot be answered now."""
    start, end = partition.index.start, partition.index.end
    if start == end:
        return False
    at = rng.randrange(start, end)
    low, high = max(0, at - rng.choice(AROUND)), min(end, at + rng.choice(AROUND))
    # The search reads whole blocks.
    first, last = max(start, low // BLOCK * BLOCK), min(end, -(-high // BLOCK) * BLOCK)
    rows = rows_between(app, partition, first, last)
    if not rows:
        return False
    rows = [row for row in rows if max(start, low) <= row.offset < high]
    needle = _needle(rng, next(row for row in rows if row.offset == at))
    wanted = [row for row in rows if needle.is_in(row)]
    sought = Sought(partition.topic, partition.number, partition.topic_id, *needle)
    answers = _answers(rng, app, sought, low, high)
    if answers is None:
        return False
    got = [
        (offset, time_ms, bytes(row))
        for answer in answers
        for offset, time_ms, row in zip(answer.offsets, answer.times_ms, answer.rows, strict=True)
    ]
    offsets, about = [offset for offset, _, _ in got], f"{name}: {needle} in [{low}, {high}) of {sought[:3]}"
    if missed := [row.offset for row in wanted if row.offset not in offsets]:
        raise Violation(f"{about} is at {missed}, and was found at {offsets}", "find-missed")
    if got != [(row.offset, row.time_ms, row.raw) for row in wanted]:
        there = [row.offset for row in wanted]
        raise Violation(f"{about} is at {there}, and was found at {offsets}, or otherwise", "find-false")
    return True


def _needle(rng: random.Random, row: Row) -> Needle:
    if rng.random() < NOWHERE:
        return rng.choice((Needle(KEY, b"nowhere"), Needle(TX_ID, b"nowhere"), Needle(ORIGIN, b"no/0/0/0")))
    options = [Needle(IN_HEADER, text, name) for name, text in row.headers.items()]
    if row.key is not None:
        options.append(Needle(KEY, row.key))
    if row.tx_id is not None:
        options.append(Needle(TX_ID, row.tx_id.encode()))
    if (origin := row.headers.get(ORIGIN_HEADER)) is not None:
        options.append(Needle(ORIGIN, origin))
    if HEADER in row.headers:
        options += [Needle(BUSINESS_KEY, key) for key in keys_of(row.headers[HEADER])]
    return rng.choice(options) if options else Needle(TX_ID, b"nowhere")


def _answers(
    rng: random.Random, app: BrokerApplication, sought: Sought, at: int, high: int
) -> list[FoundRows] | None:
    """All answers up to ``high``; None: the replica cannot answer, and another one would be asked."""
    found, limit = list[FoundRows](), rng.choice(LIMITS)
    while at < high:
        try:
            answer = app.searching.finder.find(sought, at, high, limit, 0.0)
        except EscrowMQError:
            return None
        if answer.code or answer.reached <= at:
            raise Violation(f"a search for {sought} from {at} on was answered {answer}", "find-missed")
        found.append(answer)
        at = answer.reached
    return found


def search_for_earlier(app: BrokerApplication, partition: Partition, topic_id: int) -> None:
    """Ask about a topic that had this name before."""
    sought = Sought(partition.topic, partition.number, topic_id, TX_ID, b"nowhere")
    answer = app.searching.finder.find(sought, 0, partition.index.end, 1, 0.0)
    if not answer.code:
        text = f"a search in {partition.topic} of id {topic_id}, which has {partition.topic_id} now: {answer}"
        raise Violation(text, "find-false")
