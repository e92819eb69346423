"""Share consumers' calls to real replicas: what is handed out, for how long, and who waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.calling.answers import AcquiredRow
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.share_ops import EARLIEST, share_ack, share_create
from escrowmq.replication.host.sharing import Sharing
from escrowmq.replication.model import ResultCode
from tests.support.broker_group import BrokerGroup
from tests.support.requests import TOPIC, message
from tests.support.waiting import wait_until

ME, OTHER = "0" * 32, "1" * 32
MIB = 1 << 20


@pytest.fixture
def trio(tmp_path: Path) -> Iterator[BrokerGroup]:
    with BrokerGroup(tmp_path, BrokerConfig(disk_reserve_bytes=0, share_threads=4)) as trio:
        trio.topic()
        yield trio


def topic_id(trio: BrokerGroup) -> int:
    return trio.leader().parts.running.replica.state.topics.topics[TOPIC].partitions[0].topic_id


def begin(trio: BrokerGroup) -> Sharing:
    """The group "mail" reads the topic from its beginning."""
    assert trio.submit(share_create("mail", TOPIC, 0, EARLIEST, topic_id(trio))) == [[0, 0]]
    return trio.leader().parts.sharing


def publish(trio: BrokerGroup, *values: bytes) -> None:
    (result,) = trio.submit(message(TOPIC, 0, values))
    assert result[0] == 0


def acquired(
    sharing: Sharing,
    member: str = ME,
    *,
    records: int = 100,
    lease_s: float | None = 30.0,
    wait_s: float = 0.0,
) -> list[AcquiredRow]:
    status, rows, *_ = sharing.acquire("mail", member, [TOPIC], records, MIB, lease_s, wait_s)
    assert status == "ok"
    return [AcquiredRow(*row) for row in rows]


def values(rows: list[AcquiredRow]) -> list[Any]:
    """The leased messages' values, with how many leases of them have expired."""
    found = []
    for row in rows:
        blob, at, by_offset = bytes(row.blob), 0, dict[int, Any]()
        for base, count, _, size in row.runs:
            for n, each in enumerate(decode_rows(blob[at : at + size], count)):
                by_offset[base + n] = each[1]
            at += size
        for first, last, expiries in zip(*[iter(row.leased)] * 3, strict=True):
            found += [(by_offset[offset], expiries) for offset in range(first, last + 1)]
    return found


def test_who_has_begun_gets_each_message_once(trio: BrokerGroup) -> None:
    publish(trio, b"a", b"b", b"c")
    sharing = trio.leader().parts.sharing
    (row,) = acquired(sharing)
    assert (row.topic, row.partition, row.code) == (TOPIC, 0, ResultCode.UNKNOWN_SHARE)
    begin(trio)
    assert [row.leased for row in acquired(sharing, records=2)] == [[0, 2, 0]], "a whole run"
    assert acquired(sharing, OTHER) == []


def test_a_large_run_is_divided_among_members(trio: BrokerGroup) -> None:
    publish(trio, *[b"%d" % n for n in range(10)])
    sharing = begin(trio)
    assert [value for value, _ in values(acquired(sharing, records=4))] == [b"0", b"1", b"2", b"3"]
    assert [value for value, _ in values(acquired(sharing, OTHER, records=4))] == [
        b"%d" % n for n in range(4, 10)
    ]


def test_what_is_not_acknowledged_comes_again_with_the_number_of_expiries(trio: BrokerGroup) -> None:
    publish(trio, b"a", b"b", b"c")
    sharing = begin(trio)
    began = time.monotonic()
    assert values(acquired(sharing, lease_s=1.0)) == [(b"a", 0), (b"b", 0), (b"c", 0)]
    assert trio.submit(share_ack("mail", TOPIC, 0, [1, 1], topic_id(trio))) == [[0]]
    assert values(acquired(sharing, OTHER, wait_s=10.0)) == [(b"a", 1), (b"c", 1)]
    assert 0.9 < time.monotonic() - began < 9.0


def test_an_extended_lease_goes_on_and_one_that_is_lost_is_named(trio: BrokerGroup) -> None:
    publish(trio, b"a", b"b")
    sharing = begin(trio)
    acquired(sharing, records=1, lease_s=2.0)
    assert sharing.extend("mail", ME, [(TOPIC, 0, [0, 0])], 30.0) == ("ok", [])
    assert sharing.extend("mail", OTHER, [(TOPIC, 0, [0, 1])], 30.0) == ("ok", [(TOPIC, 0, [0, 1])])
    assert values(acquired(sharing, OTHER, wait_s=8.0)) == [(b"b", 1)]
    assert sharing.extend("mail", ME, [(TOPIC, 0, [0, 1])], 30.0) == ("ok", [(TOPIC, 0, [1, 1])])


def test_a_call_that_waits_gets_what_arrives_and_what_is_given_back(trio: BrokerGroup) -> None:
    sharing = begin(trio)
    threading.Timer(0.2, publish, (trio, b"a")).start()
    assert values(acquired(sharing, wait_s=10.0)) == [(b"a", 0)]
    threading.Timer(0.2, sharing.release, ("mail", ME, [(TOPIC, 0, [0, 0])])).start()
    began = time.monotonic()
    assert values(acquired(sharing, OTHER, wait_s=10.0)) == [(b"a", 0)]
    assert time.monotonic() - began < 5.0


def test_callers_without_a_slot_are_told_when_to_ask_again(trio: BrokerGroup) -> None:
    sharing = begin(trio)
    waiting = [
        threading.Thread(target=acquired, args=(sharing,), kwargs={"records": 1, "wait_s": 30.0})
        for _ in range(2)
    ]
    for thread in waiting:
        thread.start()
    wait_until(lambda: trio.leader().parts.running.replica.lease_dispatcher.waiting == 2, what="both to wait")
    began = time.monotonic()
    pauses = [sharing.acquire("mail", OTHER, [TOPIC], 1, MIB, None, 10.0)[3] for _ in range(100)]
    assert time.monotonic() - began < 9.0, "at once: none of them waited"
    assert pauses[0] == 0.05 and pauses[-1] > 0.1, "the more of them, the later"
    for value in (b"a", b"b"):
        publish(trio, value)  # one for each
    for thread in waiting:
        thread.join(10)


def test_another_leader_hands_out_whatever_is_not_final(trio: BrokerGroup) -> None:
    publish(trio, b"a", b"b", b"c")
    assert len(values(acquired(begin(trio)))) == 3
    assert trio.submit(share_ack("mail", TOPIC, 0, [1, 2], topic_id(trio))) == [[0]]
    trio.stop(trio.leader().rid)
    assert values(acquired(trio.leader().parts.sharing, OTHER)) == [(b"a", 0)]


def test_only_the_leader_answers_and_one_that_stops_keeps_nobody_waiting(trio: BrokerGroup) -> None:
    begin(trio)
    follower, leader = trio.follower()
    asked = "mail", ME, [TOPIC], 1, MIB, None, 0.0
    assert follower.parts.sharing.acquire(*asked)[:2] == ("not_leader", leader.rid)
    assert follower.parts.sharing.extend("mail", ME, [(TOPIC, 0, [0, 0])], 1.0)[0] == "not_leader"
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(leader.parts.sharing.acquire(*asked[:-1], 30.0)))
    waiting.start()
    wait_until(lambda: leader.parts.running.replica.lease_dispatcher.waiting == 1, what="the call to wait")
    began = time.monotonic()
    trio.stop(leader.rid)
    waiting.join(10)
    assert answers[0][0] == "not_leader" and time.monotonic() - began < 10.0


NONSENSE: list[Any] = [
    ("__retry.x", ME, [TOPIC], 1, 1, None, 0.0),
    ("mail", "me", [TOPIC], 1, 1, None, 0.0),
    ("mail", ME, [], 1, 1, None, 0.0),
    ("mail", ME, [TOPIC], 0, 1, None, 0.0),
    ("mail", ME, [TOPIC], 1, 1, float("nan"), 0.0),
    ("mail", ME, [TOPIC], 1, 1, None, float("inf")),
]
NO_RANGES = [[1], [3, 2], [0, 2, 2, 3], [5, 6, 0, 1], [-1, 0]]


def test_nonsense_is_refused(trio: BrokerGroup) -> None:
    sharing = trio.leader().parts.sharing
    assert [sharing.acquire(*asked)[0] for asked in NONSENSE] == ["malformed"] * len(NONSENSE)
    refused = [sharing.release("mail", ME, [(TOPIC, 0, flat)])[0] for flat in NO_RANGES]
    assert refused == ["malformed"] * len(NO_RANGES)
