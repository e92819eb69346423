"""A share group in drawn worlds: wherever leaders fail and requests are lost, each message is open in exactly
one place (its partition, a timer, the retries, the dead letters) until it is acknowledged, then in none."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import Row, decode_rows, encode_row
from escrowmq.replication.format.forwarded import REASON, history
from escrowmq.replication.format.share_ops import BY_TABLE, REJECT
from escrowmq.replication.replica.share_admission import ranges_of
from escrowmq.replication.timers.record import RECORD
from tests.sim.environment.disk import SimDisk
from tests.support.fed_state import waiting
from tests.support.reading import everything
from tests.support.single import Single

RETRY, DEAD = "__retry.g", "__dead.g"
TOPICS = ("t", RETRY, DEAD)
ATTEMPTS = 3
SEGMENT = 3_000


class Violated(Exception):
    """What must not be."""


def hold(truth: object, what: str) -> None:
    if not truth:
        raise Violated(what)


class World:
    """Messages are known by their values."""

    def __init__(self, seed: int) -> None:
        self.drawn, self.disk = random.Random(seed), SimDisk(random.Random(seed))
        self.single = Single(self.disk, segment_bytes=SEGMENT)
        self.single.topic(partitions=1)
        for name in (RETRY, DEAD):
            self.single.submit(ops.create_topic(name, {"partitions": 1}, 0, 0))
        values: dict[str, int | str | list[int]] = {"max_attempts": ATTEMPTS, "delays_ms": [3, 9]}
        self.single.submit(share_ops.group_settings("g", values))
        self.single.submit(share_ops.share_create("g", "t", 0, share_ops.EARLIEST, self.id_of("t")))
        self.sent = 0
        self.may_be_done, self.done = set[str](), set[str]()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.each_is_open_in_one_place()
        self.none_is_given_up_early_or_late()
        self.single.close()

    def step(self) -> None:
        anytime = [self.acknowledge, self.acknowledge, self.fail, self.fail, self.fail, self.wait]
        held = self.single.node.held is not None
        self.drawn.choice(
            [*anytime, *([self.let_go] * 2 if held else [self.send, self.send, self.hold, self.end])]
        )()

    def id_of(self, topic: str) -> int:
        return self.single.state.topics.topics[topic].info.topic_id

    def open_in(self, topic: str) -> dict[int, Row]:
        """By offset."""
        state = self.single.state
        pair = state.shares.get("g", state.topics.topics[topic].partitions[0])
        if pair is None:
            raise Violated("the group has not begun")
        rows = everything(self.single.replica.fetch, topic, 0)
        return {offset: row for offset, row in rows if not pair.has(offset)}

    def some(self, offsets: Sequence[int]) -> list[int]:
        return sorted(self.drawn.sample(offsets, self.drawn.randint(1, min(len(offsets), 6))))

    def ask(self, request: bytes) -> bool:
        """Whether it was certainly done."""
        answers = self.single.send(request)
        return bool(answers) and answers[0][0] == "ok"

    def send(self) -> None:
        count = self.drawn.randint(1, 5)
        rows = [encode_row(None, str(self.sent + n).encode(), None, None) for n in range(count)]
        self.single.submit(ops.message("t", 0, "p", 0, -1, rows))
        self.sent += count

    def acknowledge(self) -> None:
        topic = self.drawn.choice(TOPICS)
        if not (found := self.open_in(topic)):
            return
        offsets = self.some([*found])
        values = {found[offset][1].decode() for offset in offsets}
        self.may_be_done |= values
        if self.ask(share_ops.share_ack("g", topic, 0, ranges_of(offsets), self.id_of(topic))):
            self.done |= values

    def fail(self) -> None:
        """Sometimes also what is final."""
        topic = self.drawn.choice(TOPICS)
        every = range(self.single.state.topics.topics[topic].partitions[0].index.end)
        if not (found := self.drawn.choice([every, [*self.open_in(topic)]])):
            return
        offsets, delay_ms = self.some(found), self.drawn.choice([BY_TABLE, BY_TABLE, REJECT, 0, 4])
        many, reason = len(offsets), "rejected" if delay_ms == REJECT else "failed"
        request = share_ops.nack(
            "g", topic, 0, offsets, [delay_ms] * many, [reason] * many, "", "me", self.id_of(topic)
        )
        self.ask(request)

    def wait(self) -> None:
        for _ in range(self.drawn.randint(1, 15)):
            self.single.send()

    def hold(self) -> None:
        """From now on entries are proposed, and not applied."""
        self.single.node.held = []

    def let_go(self) -> None:
        """The last of them get into no log."""
        held = self.single.node.held or []
        keep = self.drawn.randint(0, len(held))
        self.single.node.held = held[:keep]
        self.single.node.release()
        for _, done in held[keep:]:
            done(None, False)
        self.single.send()  # what has waited behind them

    def end(self) -> None:
        """Another leader, or a restart."""
        if self.drawn.random() < 0.5:
            self.single.fail_over()
            return
        term = self.single.node.term
        self.single.close()
        self.single = Single(self.disk, segment_bytes=SEGMENT)
        self.single.node.term = term + 1

    def each_is_open_in_one_place(self) -> None:
        if self.single.node.held is not None:
            return
        places = Counter(row[1].decode() for topic in TOPICS for row in self.open_in(topic).values())
        for record in waiting(self.single.state):
            *_, index, pos, size = RECORD.unpack(record)
            ((_, text, _, _),) = decode_rows(self.single.journal.read_range(index, pos, size), 1)
            places[text.decode()] += 1
        for value in map(str, range(self.sent)):
            hold(places[value] <= (value not in self.done), f"{value} is there {places[value]} times")
            hold(places[value] or value in self.may_be_done, f"{value} is lost")
        hold(not self.single.replica.admission.shares.under_way, "something stays under way")

    def none_is_given_up_early_or_late(self) -> None:
        for _, row in everything(self.single.replica.fetch, DEAD, 0):
            rejected = (row[2] or {})[REASON] == b"rejected"
            hold(rejected or history(row[2]).attempt == ATTEMPTS, "given up at another attempt")
        tries = Counter[tuple[bytes, int]]()
        for _, row in everything(self.single.replica.fetch, RETRY, 0):
            tries[row[1], history(row[2]).attempt] += 1
        for (value, attempt), count in tries.items():
            hold(1 <= attempt <= ATTEMPTS, "tried too often")
            hold(attempt == 1 or count <= 1 + tries[value, 1], "tried again as the same attempt")


@pytest.mark.parametrize("seed", range(20))
def test_each_message_is_open_in_one_place_until_it_is_acknowledged(seed: int) -> None:
    World(seed).run(400)
