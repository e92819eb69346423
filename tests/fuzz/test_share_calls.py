"""Arguments of the calls of share consumers, as a client with a handle and no manners may give them.

A call with nonsense is refused or fails for its caller; leases of others, and the broker, go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.calling.answers import AcquiredRow
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.share_ops import EARLIEST, share_ack, share_create
from escrowmq.replication.host import sharing
from tests.fuzz.engine import EXAMPLES, drawn
from tests.support.broker_group import BrokerGroup

HONEST, OTHER = "0" * 32, "1" * 32
ROW = encode_row(None, b"v", None, None)
#: Methods, and for each argument the values that make sense: with these, odd ones get further.
METHODS: dict[str, list[list[Any]]] = {
    "sharing.acquire": [
        *(["g", "h"], [OTHER, HONEST], [["t"], ("t", "u")], [1, 10_000], [1, 1 << 20]),
        *([None, 30.0], [0.0, 5.0]),
    ],
    "sharing.extend": [["g"], [OTHER], [[("t", 0, [0, 3])], [("t", 1, [0, 0, 5, 9])]], [30.0, 0.0]],
    "sharing.release": [["g"], [OTHER], [[("t", 0, [0, 3])], [("t", 1, [0, 1 << 40])]]],
    "share_reports.places": [["g", "h"]],
    "share_reports.final": [["g"], ["t", "__retry.g"], [0, 1]],
    "messages.shares.progress": [["t", "__dead.g"], [0, 1], [0, 7], [["s"], []]],
}
#: What arguments of a wrong type or range may end in, for their caller alone, beside an error of ours.
ARGUMENT_ERRORS = (TypeError, ValueError, LookupError, AttributeError, OverflowError)

odd: st.SearchStrategy[Any] = st.sampled_from([
    None, True, 0, -1, 1 << 62, 1 << 70, -(1 << 70), 0.0, -1.5, math.inf, -math.inf, math.nan, "", "t",
    "x" * 32, "x" * 1000, "\ud800", "\ud800" * 32,
    "__retry.g", b"", b"t", [], {}, (), [[]], [None], [b"t"], ["t"] * 2_000,
    {"t": 0}, [("t",)], [("t", 0)], [("t", 0, [0])], [("t", 0, [3, 0])], [("t", 0, [0, 3, 3, 4])],
    [("t", 0, [-1, 3])], [("t", 0, [0, 1 << 70])], [("t", -1, [0, 1])], [("t", 1 << 70, [0, 1])],
    [("t", 0, [None, 1])], [("t", 0, [0.5, 1])], [("t", 0, "ab")], [("t", 0, None)], [("t", "0", [0, 1])],
    [([], 0, [0, 1])], [("t", 0, [True, True])], [("t", 0, [0, 1])] * 2, [("t", 0, [0, 1])] * 2_000,
    [("\ud800", 0, [0, 1])], [("t", 0, list(range(30_000)))],
])  # fmt: skip


def arguments(sensible: list[list[Any]]) -> st.SearchStrategy[list[Any]]:
    """Mostly sensible ones, with one or several that are not."""
    each = [st.one_of(st.sampled_from(values), st.sampled_from(values), odd) for values in sensible]
    return st.tuples(*each).map(list)


calls = st.lists(
    st.sampled_from(sorted(METHODS)).flatmap(lambda m: st.tuples(st.just(m), arguments(METHODS[m]))),
    min_size=1,
    max_size=8,
)


class Broker:
    """A group of one, whose share group ``g`` has begun with topic ``t``; nobody else uses partition 1."""

    def __init__(self, path: Path) -> None:
        config = BrokerConfig(segment_bytes=64 << 10, disk_reserve_bytes=0, share_threads=4)
        self.trio = BrokerGroup(path, config, replicas=1)
        self.trio.start()
        self.parts = self.trio.leader().parts
        ((_, self.topic_id),) = self.trio.submit(ops.create_topic("t", {"partitions": 2}))
        for partition in (0, 1):
            self.trio.submit(share_create("g", "t", partition, EARLIEST, self.topic_id))
        self.trio.submit(ops.message("t", 0, "p", 0, -1, [ROW] * 10, -1, self.topic_id))
        self.sent = 0

    def nonsense(self, method: str, given: list[Any]) -> None:
        """One call; what it raises goes to the caller, who made the mistake."""
        started = time.monotonic()
        try:
            answer = attrgetter(method)(self.parts)(*given)
            assert type(answer) is tuple and type(answer[0]) is str, (method, given, answer)
        except EscrowMQError as error:
            assert str(error)
        except ARGUMENT_ERRORS:
            pass
        assert time.monotonic() - started < 3, (method, given)

    def honest(self) -> None:
        """Another group gets, keeps and settles messages as if nothing had happened."""
        ((code, _),) = self.trio.submit(ops.message("t", 1, "p", 0, -1, [ROW], -1, self.topic_id))
        assert code == 0
        if not self.sent:
            self.trio.submit(share_create("honest", "t", 1, EARLIEST, self.topic_id))
        lease = ("honest", HONEST, ["t"], 10, 1 << 20, 30.0, 0.0)
        status, rows, *_ = self.parts.sharing.acquire(*lease)
        found = [row for row in map(AcquiredRow._make, rows) if row.partition == 1]
        assert status == "ok" and [list(row.leased) for row in found] == [[self.sent, self.sent, 0]]
        place = [("t", 1, [self.sent, self.sent])]
        assert self.parts.sharing.extend("honest", HONEST, place, 30.0) == ("ok", [])
        assert self.trio.submit(share_ack("honest", "t", 1, [self.sent, self.sent], self.topic_id)) == [[0]]
        self.sent += 1
        assert not self.trio.ended


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("share-calls"))
    yield running
    running.trio.close()


def test_nonsense_of_share_consumers_hurts_its_caller_only(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "WAIT_S_MAX", 0.02)

    @drawn(calls, examples=EXAMPLES // 3)
    def run(sequence: list[tuple[str, list[Any]]]) -> None:
        for method, given in sequence:
            broker.nonsense(method, given)
        broker.honest()

    run()
