"""Leases and what is final, together: one replica that leads, and is asked by share consumers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import encode_command
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.lease_dispatcher import ASKS_MAX, AcquireRequest
from escrowmq.replication.state.shares import RANGES_MAX
from tests.support.lease_dispatcher import DEAD, LEASE_MS, ME, OTHER, RETRY, TICK_MS, Desk


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Desk]:
    running = Desk(tmp_path)
    running.begin()
    yield running
    running.close()


def test_at_the_third_expiry_the_leader_nacks_the_message_itself(single: Desk) -> None:
    single.put("kills", "fine")
    for expiries in range(3):
        assert [found[1::2] for found in single.take(OTHER if expiries else ME, 1)] == [("kills", expiries)]
        if not expiries:
            assert single.values(OTHER) == ["fine"] and single.ack(1, 1) == [0]
        single.pass_ms(LEASE_MS + TICK_MS)
    single.pass_ms(2 * TICK_MS)
    ((topic, value, offset, expiries),) = single.take()
    assert (topic, value, offset, expiries) == (RETRY, "kills", 0, 0)


def test_what_another_member_holds_cannot_be_nacked_and_what_nobody_holds_can(single: Desk) -> None:
    single.put("a", "b")
    single.take(ME, 1)
    assert single.nack(0, 1, member=OTHER) == [ResultCode.PARTIAL, [[0, ResultCode.LEASE_LOST, None]]]
    assert single.nack(0, member=ME) == [0]
    single.fail_over()
    assert [found[:2] for found in single.take()] == [(RETRY, "b"), (RETRY, "a")]


def test_what_a_nack_is_under_way_for_is_not_handed_out(single: Desk) -> None:
    single.put("a", "b")
    single.take(ME, 1)
    single.node.held = []
    single.send(share_ops.nack("g", "t", 0, [0], [0], ["no"], ME, "me", single.id_of("t")))
    single.pass_ms(2 * LEASE_MS)
    assert single.values(OTHER) == ["b"]
    single.node.release()
    assert [found[:2] for found in single.take(OTHER)][:1] == [(RETRY, "a")]


def test_an_acknowledgement_that_came_to_nothing_leaves_its_messages_to_their_holder(single: Desk) -> None:
    """Also if the last one of them was final before. It may have come from an earlier holder."""
    single.put("a", "b", "c")
    assert single.values() == ["a", "b", "c"]
    assert single.ack(2, 2) == [0]
    single.node.held = []
    single.send(share_ops.share_ack("g", "t", 0, [0, 2], single.id_of("t")))
    ((_, done),), single.node.held = single.node.held, None
    done(None, False)
    assert single.values(OTHER) == []
    single.pass_ms(2 * LEASE_MS)
    assert single.values(OTHER) == ["a", "b"]


def test_partitions_take_turns_and_retries_come_first(tmp_path: Path) -> None:
    single = Desk(tmp_path)
    single.begin(partitions=3)
    for number in range(3):
        for n in range(6):
            single.put(f"{number}{n}", partition=number)
    assert single.nack(0) == [0]
    got = [found for _ in range(10) for found in single.take(wanted=1)]
    assert got[0][:2] == (RETRY, "00")
    assert {value[0] for _, value, *_ in got[1:4]} == {"0", "1", "2"}
    single.close()


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
def test_no_partition_waits_behind_busy_ones(tmp_path: Path, partitions: int, others: int) -> None:
    """Each is first once in as many answers, however often calls are looked at before one is served, and
    whatever another group does in between."""
    single = Desk(tmp_path)
    single.begin(partitions)
    for number in range(partitions):
        single.submit(share_ops.share_create("h", "t", number, share_ops.EARLIEST, single.id_of("t")))
        for n in range(3 * partitions):
            single.put(f"{number}/{n}", partition=number)
    first = []
    for _ in range(2 * partitions):
        first.append(single.values(wanted=1)[0].split("/")[0])
        for _ in range(others):
            single.ask(wanted=1, group="h")
    assert set(first[:partitions]) == set(first[partitions:]) == set(map(str, range(partitions)))
    single.close()


def test_all_of_many_partitions_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits looks at some of them at a time, and has seen each after a few looks."""
    monkeypatch.setattr("escrowmq.replication.replica.lease_dispatcher.LOOKS_MAX", 4)
    single = Desk(tmp_path)
    single.begin(9)
    single.put("found", partition=7)
    assert any(single.values(wanted=1) for _ in range(6))
    single.close()


def test_who_waits_longest_is_served_first_and_one_at_a_time(single: Desk) -> None:
    waiting = [single.ask(member, 1, wait_ms=10_000) for member in (ME, OTHER, ME)]
    assert single.replica.lease_dispatcher.waiting == 3
    single.put("a")
    assert [len(answers) for answers in waiting] == [1, 0, 0]
    single.put("b")
    single.put("c")
    assert [len(answers) for answers in waiting] == [1, 1, 1]
    late = single.ask(wait_ms=500)
    single.pass_ms(400)
    assert not late
    single.pass_ms(100)
    assert late == [("ok", [])]


def test_what_is_not_there_is_said(single: Desk) -> None:
    single.topic("other")
    ((_, rows),) = single.ask(topics=("t", "nope", "other"), wait_ms=10_000)
    assert {(row.topic, row.number, row.code) for row in rows} == {
        ("nope", -1, ResultCode.UNKNOWN_TOPIC),
        ("other", 0, ResultCode.UNKNOWN_SHARE),
    }


def test_a_group_that_is_deleted_begins_anew(single: Desk) -> None:
    single.put("a", "b")
    assert single.values() == ["a", "b"]
    assert single.ack(1, 1) == [0]
    assert single.submit(ops.delete_group("g", 1)) == [[ResultCode.LEASE_LOST, [ME]]]
    single.pass_ms(LEASE_MS + TICK_MS)
    assert single.submit(ops.delete_group("g", 1)) == [[0]]
    single.submit(share_ops.share_create("g", "t", 0, share_ops.EARLIEST, single.id_of("t")))
    assert single.values(OTHER) == ["a", "b"]


def test_nothing_is_handed_out_to_a_group_whose_deletion_is_under_way(single: Desk) -> None:
    """Regression: whoever asked between the request and its entry got messages, and so did the next one who
    asked after the entry had made the leader forget these leases."""
    single.put("a")
    assert single.values() == ["a"] and single.nack(0) == [0]
    single.send()
    single.node.held = []
    deleted = single.send(ops.delete_group("g", 1))
    waiting = single.ask(wait_ms=500)
    assert not deleted and not waiting
    single.node.release()
    single.send()
    assert deleted[0][1] == [[0]]
    ((_, rows),) = waiting
    retries = [row for row in rows if row.topic == RETRY]
    assert [found[1] for row in retries for found in single.read(row)] == ["a"]
    ((_, rows),) = single.ask(OTHER)
    assert [row.topic for row in rows] == ["t"], "the retry belongs to the first one"


def test_leases_of_a_topic_that_was_deleted_are_forgotten(single: Desk) -> None:
    single.put("a")
    assert single.values() == ["a"]
    single.submit(ops.delete_topic("t"))
    single.pass_ms(20_000)
    assert (
        not single.replica.lease_dispatcher.leases.windows
        and single.replica.lease_dispatcher.leases.messages == 0
    )


def test_the_number_of_waiting_calls_is_bounded(single: Desk) -> None:
    desk, refused = single.replica.lease_dispatcher, list[Any]()
    asked = AcquireRequest("g", ME, ("t",), 1, 1 << 20, LEASE_MS, single.now_ms + 1_000, refused.append)
    for _ in range(ASKS_MAX):
        desk.acquire(asked, single.now_ms)
    assert desk.waiting == ASKS_MAX and not refused
    assert single.ask(wait_ms=1_000)[0][0] == "overloaded"


def test_nothing_is_handed_out_while_too_many_ranges_are_kept(single: Desk) -> None:
    single.put("a", "b", "c")
    assert single.values() == ["a", "b", "c"]
    single.state.shares.ranges = RANGES_MAX - 1
    ack = share_ops.share_ack("g", "t", 0, [1, 1], single.id_of("t"))
    assert single.submit(ack) == [[0]] and single.ask()[0][0] == "overloaded"
    ack = share_ops.share_ack("g", "t", 0, [0, 0], single.id_of("t"))
    assert single.submit(ack) == [[0]] and single.ask()[0][0] == "ok"


# ------------------------------------------------------------------ any sequence


class AnySequence(RuleBasedStateMachine):
    """``where``: each message -> "waiting", who holds it, or "final". Nothing is delayed: what is nacked is
    in the topic of retries at once. Values are unique, and a copy has its original's."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = TemporaryDirectory()
        self.single = Desk(Path(self._directory.name), segment_bytes=64 << 10)
        self.single.begin(delays_ms=[0], max_attempts=1_000)
        self.where: dict[str, str] = {}
        self.address: dict[str, tuple[str, int]] = {}
        self.until: dict[str, int] = {}
        self.number = 0

    def teardown(self) -> None:
        self.everything_is_handed_out_in_the_end()
        self.single.close()
        self._directory.cleanup()

    @rule(count=st.integers(1, 5))
    def send(self, count: int) -> None:
        values = [str(self.number + n) for n in range(count)]
        self.number += count
        self.single.put(*values)
        self.where.update(dict.fromkeys(values, "waiting"))

    @rule(member=st.sampled_from((ME, OTHER)), wanted=st.integers(1, 8))
    def acquire(self, member: str, wanted: int) -> None:
        # A message at its last chance is handed out alone, and others have to wait for it.
        last_chance = self.single.replica.lease_dispatcher.leases.doubtful
        got = self.single.take(member, wanted)
        waiting = [value for value, where in self.where.items() if where == "waiting"]
        assert last_chance or len(got) >= min(wanted, len(waiting))
        for topic, value, offset, _ in got:
            assert self.where[value] == "waiting"
            self.where[value], self.address[value] = member, (topic, offset)
            self.until[value] = self.single.now_ms + LEASE_MS

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        if value := self.any_handed_out(data):
            topic, offset = self.address[value]
            assert self.single.ack(offset, offset, topic=topic) == [0]
            self.where[value] = "final"

    @rule(data=st.data(), member=st.sampled_from((ME, OTHER)))
    def refuse(self, data: st.DataObject, member: str) -> None:
        """Whoever asks: it counts from the holder, or when nobody holds it."""
        if value := self.any_handed_out(data):
            topic, offset = self.address[value]
            result = self.single.nack(offset, topic=topic, member=member)
            if self.where[value] in (member, "waiting"):
                assert result == [0]
                self.where[value] = "waiting"
                del self.address[value]
            else:
                assert result == [ResultCode.PARTIAL, [[0, ResultCode.LEASE_LOST, None]]]

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        if value := self.any_handed_out(data):
            topic, offset = self.address[value]
            holder = self.where[value]
            lost = self.single.replica.lease_dispatcher.release("g", ME, topic, 0, [(offset, offset)])
            assert bool(lost) is (holder != ME)
            if holder == ME:
                self.where[value] = "waiting"

    @rule(ticks=st.integers(1, 15))
    def time_passes(self, ticks: int) -> None:
        self.single.pass_ms(ticks * TICK_MS)
        for value, until_ms in self.until.items():
            if self.where[value] in (ME, OTHER) and until_ms <= self.single.now_ms:
                self.where[value] = "waiting"
                # At the third expiry it has moved: a nack of its old place would do nothing.
                self.address.pop(value)

    @rule()
    def fail_over(self) -> None:
        self.single.fail_over()
        for value, where in self.where.items():
            if where != "final":
                self.where[value] = "waiting"

    def any_handed_out(self, data: st.DataObject) -> str:
        known = [value for value in self.address if self.where[value] != "final"]
        return data.draw(st.sampled_from(known)) if known else ""

    def everything_is_handed_out_in_the_end(self) -> None:
        self.fail_over()
        got = [found for _ in range(100) for found in self.single.take(wanted=10)]
        expected = sorted(value for value, where in self.where.items() if where != "final")
        assert sorted(value for _, value, *_ in got) == expected


AnySequence.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAnySequence = AnySequence.TestCase


def die(single: Desk) -> None:
    """A message whose consumers die with it, three times."""
    single.put("kills")
    for expiries in range(3):
        assert single.values(OTHER if expiries else ME) == ["kills"]
        single.pass_ms(LEASE_MS + TICK_MS)


def without_topics(single: Desk) -> None:
    """As after a deletion that was interrupted."""
    for name in (RETRY, DEAD):
        entry = encode_command([ops.delete_topic(name)], 1, single.now_ms)
        single.node.propose(entry, lambda results, outcome: None)


def test_the_leaders_own_nacks_get_rare_and_say_what_to_do_while_there_is_no_topic_for_them(
    single: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nacks: list[int] = []
    desk = single.replica.lease_dispatcher
    submit = desk._nack
    monkeypatch.setattr(
        desk, "_nack", lambda frame, partition: (nacks.append(single.now_ms), submit(frame, partition))
    )
    without_topics(single)
    die(single)
    single.pass_ms(300_000)
    pauses = [b - a for a, b in pairwise(nacks)]
    assert pauses[:5] == sorted(pauses[:5]) and pauses[0] < 1_500
    assert 50_000 < max(pauses) <= 60_000 + 2 * TICK_MS and len(nacks) < 14
    told = [record.getMessage() for record in caplog.records if "lost its topic" in record.getMessage()]
    assert 4 <= len(told) <= 6 and "1 messages of t/0" in told[0] and RETRY in told[0]
    assert "Start a share consumer" in told[0]
    assert single.values() == [], "nobody gets it meanwhile"
    for name in (RETRY, DEAD):
        single.submit(ops.create_topic(name, {"partitions": 1}, 0, 0))
    single.pass_ms(61_000)
    assert [found[:2] for found in single.take()] == [(RETRY, "kills")]


def test_with_its_topics_a_nack_that_did_not_fit_is_repeated_every_second(
    single: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    nacks: list[int] = []
    desk = single.replica.lease_dispatcher
    monkeypatch.setattr(desk, "_nack", lambda frame, partition: nacks.append(single.now_ms))
    die(single)
    single.pass_ms(20_000)
    assert max(b - a for a, b in pairwise(nacks)) <= 1_000 + 2 * TICK_MS


@pytest.mark.parametrize("topic", [RETRY, DEAD])
def test_a_share_groups_topics_are_not_deleted_while_it_exists(single: Desk, topic: str) -> None:
    single.submit(share_ops.group_settings("g", {"kind": "share"}))
    assert single.submit(ops.delete_topic(topic)) == [[ResultCode.GROUP_KIND, "share"]]
    assert single.submit(ops.delete_topic("__retry.others")) == [[ResultCode.UNKNOWN_TOPIC, 3]]
    assert single.submit(ops.delete_group("g", 1)) == [[0]]
    assert single.submit(ops.delete_topic(topic)) == [[0]]
