"""Arguments of a broker's methods, as a client with a handle and no manners may give them.

A call with nonsense is refused or fails for its caller; the broker goes on, and honest clients with it.
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
from escrowmq.actors.client.consumer_groups import GroupAssignment, GroupJoined
from escrowmq.replication.calling.answers import FetchEnds, LockedChecks, PartitionBounds, PartitionSpans
from escrowmq.replication.errors import EscrowMQError
from escrowmq.replication.format import ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.host import finding, running_replica
from tests.fuzz.engine import drawn
from tests.support.broker_group import BrokerGroup

ROW = encode_row(None, b"v", None, None)
#: Part of a broker -> method -> how many arguments it takes; the last of them may be left out.
METHODS = {
    "requests": {"submit": 1},
    "reads": {
        "fetch": 3,
        "fetch_ends": 6,
        "offsets": 2,
        "topics": 1,
        "topic_names": 2,
        "partition_bounds": 1,
        "committed": 2,
    },
    "due_checks": {
        "due_pairs": 5,
        "lock_pairs": 3,
        "open_pairs": 3,
        "release_locks": 4,
    },
    "inspection": {"tx_states": 2, "transactions": 4, "find_transaction": 2, "audit": 0, "status": 0},
    "running": {"whoami": 0},
    "offers": {"checkpoint_manifest": 0, "checkpoint_read": 3, "checkpoint_suspect": 2},
    "watching": {"watch": 2, "spans": 1},
    "messages": {"find": 6, "message_at": 5, "group_places": 2},
    "messages.shares": {"progress": 4},
    "groups": {"join": 5, "heartbeat": 3, "leave": 2, "commit": 4, "describe": 1, "names": 0},
}
PART_OF = {method: part for part, methods in METHODS.items() for method in methods}
#: What arguments of a wrong type or range may end in, for their caller alone, beside an error of ours. Any
#: other exception, as of the disk, of an assertion or without memory, is a bug. A *request* is bytes from
#: the network, and checked whole: `submit` never raises at all.
ARGUMENT_ERRORS = (TypeError, ValueError, LookupError, AttributeError, OverflowError)
#: The leader's newest segment, so that calls about files reach one.
FILE = "0000000000000001.log"

odd = st.sampled_from([
    None, True, 0, -1, 1 << 62, 1 << 70, -(1 << 70), 0.0, -1.5, math.inf, -math.inf, math.nan, "", "t", "app",
    1e300, "x" * 1000, "\ud800", "../identity.json", b"", b"\x00", [], {}, (), ["t"], [("t", 0, 0)],
    [("t", 0, 1 << 62)], [("t", 0, -5)], [("t", 1 << 70, 0)], [None], [("t",)], {"t": {0: 1}},
    {"t": {0: -1}}, {"t": {0: 1 << 70}},
    {"t": 5}, {5: {"x": None}}, {"t": {"x": "y"}}, [[["t"]]], [1], ["t", 7],
    FILE, 40, (1 << 63) - 1, "x\0.log", "\ud800.log", "x" * 300 + ".snap", [("t", 0, 0, 1, 1)],
    [("t", 0, 0, 1 << 70, 1 << 70)], [("t", 0, -1, -5, -1)], [("t", 0, "0", None, 1.5)], [("t", None, 0)],
    ("t", 0, 0), ("t", 1, -1), (1, b"k", ""), (3, "k", 5), (5, b"", "h"), (5, None, "h"), (4, b"t/0/0/0"),
    [("t", 0, 0, 1)], [("t", 0, 0, None)], [("t", 0, 0, -1)], [("t", [], 0)], [([], 0, 0)],
    [("t", 0, None)], [("t", 0, math.nan)], [("app", "t", 5)], [("app", "t", -1)],
    [("app", "t", 1)] * 300, ["app"], 2, 1024,
])  # fmt: skip
calls = st.lists(
    st.one_of(
        st.sampled_from(sorted(table.items())).flatmap(
            lambda item: st.tuples(st.just(item[0]), st.lists(odd, min_size=0, max_size=item[1]))
        )
        for table in METHODS.values()
    ),
    min_size=1,
    max_size=8,
)


class Broker:
    """A group of one, with the coordinator of consumer groups in front, as the actor has it."""

    def __init__(self, path: Path) -> None:
        self.trio = BrokerGroup(path, BrokerConfig(segment_bytes=64 << 10), replicas=1)
        self.trio.start()
        self.parts = self.trio.leader().parts
        self.trio.submit(ops.create_topic("t", {"partitions": 2}))
        self.sent = 0

    def nonsense(self, method: str, arguments: list[Any]) -> None:
        """One call; Ray carries what it raises to the caller, who made the mistake."""
        target = attrgetter(PART_OF[method])(self.parts)
        started = time.monotonic()
        try:
            getattr(target, method)(*arguments)
        except EscrowMQError as error:
            assert str(error)
        except ARGUMENT_ERRORS:
            assert method != "submit" or not arguments, "a request is refused with an answer"
        assert time.monotonic() - started < 20, (method, arguments)

    def honest(self) -> None:
        """What a well-behaved client does goes on as if nothing had happened."""
        ((code, (base, _)),) = self.trio.submit(ops.message("t", 0, "p", 0, -1, [ROW]))
        assert (code, base) == (0, self.sent)
        self.sent += 1
        assert self.parts.reads.fetch([("t", 0, base)], 1000, 0.0)[0][6] == ROW
        assert self.parts.reads.fetch_ends("t", 0, base, base + 1, 1000, 9) == FetchEnds(0, [base + 1])
        watching, groups = self.parts.watching, self.parts.groups
        assert watching.watch([("t", 0, base)], 0.0) == ("ok", PartitionBounds([0], [0], [base + 1]))
        spans = watching.spans([("t", 0, base, base + 1, 1 << 20)])
        assert spans == ("ok", PartitionSpans([0], [base + 1], [len(ROW)]))
        status, joined = groups.join("honest", "me", ["t"], 10.0)
        assert status == "ok" and isinstance(joined, GroupJoined)
        _, heard = groups.heartbeat("honest", "me", joined.assignment.generation)
        assert isinstance(heard, GroupAssignment)
        assert groups.names()[0] == "ok"
        assert self.parts.inspection.status().ready
        assert not self.trio.ended


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    running = Broker(tmp_path_factory.mktemp("calls"))
    yield running
    running.trio.close()


def test_nonsense_hurts_its_caller_only(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_replica, "WAIT_S_MAX", 0.02)
    monkeypatch.setattr(finding, "WAIT_S_MAX", 0.02)

    @drawn(calls)
    def run(sequence: list[tuple[str, list[Any]]]) -> None:
        for method, arguments in sequence:
            broker.nonsense(method, arguments)
        broker.honest()

    run()


def test_files_outside_the_log_are_not_read(broker: Broker) -> None:
    for name in ("../identity.json", "/etc/passwd", "identity.json", "vote", "x/../../a.log", ""):
        assert broker.parts.offers.checkpoint_read(name, 0, 100) == b""


def test_no_question_about_a_file_ends_the_replica(broker: Broker) -> None:
    """A size in the middle of an entry made sound files look damaged, a position near 2^63 the disk broken:
    the leader ended, and left for repair."""
    numbers = (None, -1, 0, 1, 31, 32, 33, 40, 100, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 70, 1.5, "1")
    for name in (FILE, "vote", "x.log", "x\0.log", "\ud800.log", "x" * 300 + ".snap", "", None, 5, b"x.log"):
        for number in numbers:
            broker.nonsense("checkpoint_suspect", [name, number])
            for size in (number, 10):
                broker.nonsense("checkpoint_read", [name, number, size])
        assert not broker.trio.ended, name
    broker.honest()


def test_an_answer_is_bounded_whatever_is_asked(broker: Broker) -> None:
    names = broker.parts.offers.checkpoint_manifest()[1].files
    assert len(broker.parts.offers.checkpoint_read(names[0][0], 0, 1 << 40)) <= 8 << 20
    assert broker.parts.offers.checkpoint_read(names[0][0], -1, 10) == b""
    started = time.monotonic()
    asked = [("app", "t", 1 << 60)]
    assert broker.parts.due_checks.lock_pairs(asked, math.inf, "me") == ("ok", [LockedChecks()])
    assert time.monotonic() - started < 20
