"""What share groups have finished: ranges against a set of offsets, and the operations that change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from escrowmq.replication.errors import CorruptLog
from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.settings import DEFAULTS
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state import snapshot
from escrowmq.replication.state.group_offsets import ATTEMPTS_KEPT, Attempts
from escrowmq.replication.state.index import PartitionIndex
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.shares import Pair
from escrowmq.replication.state.snapshot import Capture, capture, release
from tests.support.fed_state import FedState, dump, state_with_shares, waiting
from tests.support.stored_bytes import stored

ROW = encode_row(None, b"v", None, None)
GROUPS = ("mail", "sms")


def ack(*ranges: int, group: str = "mail", topic: str = "t", partition: int = 0, topic_id: int = 0) -> bytes:
    return share_ops.share_ack(group, topic, partition, ranges, topic_id)


def begin(where: str = share_ops.EARLIEST, group: str = "mail", partition: int = 0) -> bytes:
    return share_ops.share_create(group, "t", partition, where, 0)


def sent(count: int, partition: int = 0) -> bytes:
    return ops.message("t", partition, "p", 0, -1, [ROW] * count)


def reread(state: StateMachine, data: bytes | None = None) -> StateMachine:
    """What a restart makes of it."""
    again = StateMachine(0, 1)
    taken = capture(state, 1, [])
    snapshot.restore(again, "x", b"".join(snapshot.encode(taken)) if data is None else data)
    snapshot.adopt_runs(again, stored(taken.tables))
    release(state, taken)
    return again


def kept(state: StateMachine) -> dict[str, object]:
    """What a snapshot keeps of consumer groups."""
    whole = dump(state)
    return {name: whole[name] for name in ("shares", "share groups", "groups", "bounds")}


def ranges_of(offsets: set[int]) -> list[int]:
    """First, last, ... of sorted offsets."""
    found: list[int] = []
    for offset in sorted(offsets):
        if found and found[-1] == offset - 1:
            found[-1] = offset
        else:
            found += (offset, offset)
    return found


class Against(RuleBasedStateMachine):
    """A state, and for each pair the set of offsets that are final, and the number that has expired."""

    @initialize()
    def start(self) -> None:
        self.log = FedState()
        self.final: dict[tuple[str, int], set[int]] = {}
        self.expired: dict[tuple[str, int], int] = {}
        self.begins: dict[tuple[str, int], int] = {}
        self.ends, self.starts = [0, 0], [0, 0]
        self.held: Capture | None = None
        self.then: dict[str, object] = {}

    @rule(partition=st.integers(0, 1), count=st.integers(1, 30))
    def send(self, partition: int, count: int) -> None:
        self.log.add(sent(count, partition))
        self.ends[partition] += count

    @rule(partition=st.integers(0, 1), group=st.sampled_from(GROUPS), latest=st.booleans())
    def begin(self, partition: int, group: str, latest: bool) -> None:
        (result,) = self.log.add(begin(share_ops.LATEST if latest else share_ops.EARLIEST, group, partition))
        key = group, partition
        if key in self.final:
            assert result == [ResultCode.DUPLICATE, self.start_of(key)]
            return
        self.begins[key] = self.ends[partition] if latest else self.starts[partition]
        self.final[key], self.expired[key] = set(), 0
        assert result == [0, self.begins[key]]

    @rule(
        partition=st.integers(0, 1),
        group=st.sampled_from(GROUPS),
        picked=st.sets(st.integers(0, 70), min_size=1),
    )
    def acknowledge(self, partition: int, group: str, picked: set[int]) -> None:
        (result,) = self.log.add(ack(*ranges_of(picked), group=group, partition=partition))
        key = group, partition
        if max(picked) >= self.ends[partition]:
            assert result == [ResultCode.OUT_OF_RANGE, [self.starts[partition], self.ends[partition]]]
        elif key not in self.final:
            assert result == [ResultCode.UNKNOWN_SHARE]
        else:
            assert result == [0]
            self.final[key] |= {n for n in picked if n >= max(self.begins[key], self.starts[partition])}

    @rule(partition=st.integers(0, 1), by=st.integers(1, 20))
    def expire(self, partition: int, by: int) -> None:
        start = min(self.starts[partition] + by, self.ends[partition])
        self.log.add(ops.trim("t", {partition: start}))
        for group in GROUPS:
            if (key := (group, partition)) in self.final:
                gone = range(max(self.starts[partition], self.begins[key]), start)
                self.expired[key] += sum(n not in self.final[key] for n in gone)
        self.starts[partition] = start

    @rule(group=st.sampled_from(GROUPS))
    def delete(self, group: str) -> None:
        (result,) = self.log.add(ops.delete_group(group, 1))
        gone = [key for key in self.final if key[0] == group]
        assert result == [0 if gone else ResultCode.DUPLICATE]
        for key in gone:
            del self.final[key], self.expired[key], self.begins[key]

    @rule()
    def restart(self) -> None:
        self.log.state = reread(self.log.state)
        self.held = None

    @precondition(lambda self: self.held is None)
    @rule()
    def take(self) -> None:
        self.held, self.then = Capture(self.log.state, 1, []), dump(self.log.state)["shares"]

    @precondition(lambda self: self.held is not None)
    @rule()
    def write(self) -> None:
        """What changed since the snapshot began is not in it."""
        assert self.held is not None
        while not self.held.step(1):
            pass
        saved = {key: pair.saved() for key, pair in self.held.snapshot.shares}
        assert saved == {key: value[:3] for key, value in self.then.items()}  # type: ignore[index]
        release(self.log.state, self.held.snapshot)
        self.held = None

    def start_of(self, key: tuple[str, int]) -> int:
        start = max(self.begins[key], self.starts[key[1]])
        while start in self.final[key]:
            start += 1
        return start

    @invariant()
    def agrees(self) -> None:
        shares, topic = self.log.state.shares, self.log.state.topics.topics["t"]
        assert len(shares.pairs) == len(self.final)
        assert shares.ranges == sum(pair.ranges for pair in shares.pairs.values())
        for key, final in self.final.items():
            pair = shares.get(key[0], topic.partitions[key[1]])
            assert pair is not None
            start, end = self.start_of(key), self.ends[key[1]]
            assert (pair.start, pair.expired) == (start, self.expired[key])
            assert pair.waiting == sum(n not in final for n in range(start, end))
            assert {n for n in range(start, end) if pair.has(n)} == {n for n in final if n >= start}
            told: set[int] = set()
            at: int | None = 0
            while at is not None and at < end:
                first, last = pair.open_from(at)
                told |= set(range(first, end if last is None else last + 1))
                at = None if last is None else last + 1
            assert told & set(range(end)) == {n for n in range(start, end) if n not in final}


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def pair_of(flat: Sequence[int] = (), start: int = 0) -> Pair:
    return Pair(PartitionIndex(0, 1_000), start, 0, flat)


@given(st.lists(st.sets(st.integers(0, 40), min_size=1), max_size=12))
def test_ranges_join_whatever_the_order(batches: list[set[int]]) -> None:
    pair, final = pair_of(), set[int]()
    for batch in batches:
        pair.add(ranges_of(batch))
        final |= batch
        start, _, flat = pair.saved()
        assert [*range(start)] == [n for n in range(start) if n in final] and start not in final
        assert flat == ranges_of({n for n in final if n > start})


def test_a_group_begins_once() -> None:
    """The second "latest" would skip what came since the first."""
    log = FedState()
    log.add(sent(5))
    assert log.add(begin(share_ops.LATEST)) == [[0, 5]]
    log.add(sent(5))
    assert log.add(begin(share_ops.LATEST)) == [[ResultCode.DUPLICATE, 5]]
    assert log.add(ack(7, 9)) == [[0]]
    assert log.add(begin()) == [[ResultCode.DUPLICATE, 5]]


def test_what_is_repeated_changes_nothing() -> None:
    log = FedState()
    log.add(sent(10), begin())
    log.add(ack(0, 3, 6, 7))
    before = dump(log.state)["shares"]
    assert log.add(ack(6, 6), ack(0, 1)) == [[0], [0]]
    assert dump(log.state)["shares"] == before == {("mail", 1): (4, 0, [6, 7], 4)}


def test_another_topic_of_that_name_is_not_acknowledged() -> None:
    log = FedState()
    log.add(sent(10), begin())
    assert log.add(ack(0, 3, topic_id=9)) == [[ResultCode.OTHER_TOPIC, 1]]
    assert log.add(ack(0, 3, topic="gone")) == [[ResultCode.UNKNOWN_TOPIC]]
    assert log.add(ack(0, 3, partition=7)) == [[ResultCode.BAD_PARTITION]]
    log.add(ops.delete_topic("t"))
    assert not log.state.shares.pairs
    log.add(ops.delete_group("mail", 1))  # which looks for pairs of the group
    log.add(ops.create_topic("t", {"partitions": 1}), sent(10))
    assert log.add(ack(0, 3)) == [[ResultCode.UNKNOWN_SHARE]]


def test_a_group_begins_by_itself_with_its_internal_topics() -> None:
    log = FedState()
    log.add(ops.create_topic("__dead.mail", {"partitions": 1}, 0))
    log.add(share_ops.forward("__dead.mail", 0, [0, 0, 0], [ROW] * 3))
    assert log.add(ack(1, 1, topic="__dead.mail")) == [[0]]
    (pair,) = log.state.shares.pairs.values()
    assert pair.saved() == (0, 0, [1, 1])


def test_retention_counts_what_nobody_has_handled() -> None:
    log = FedState()
    log.add(sent(10), begin())
    log.add(ack(2, 3, 8, 8))
    log.add(ops.trim("t", {0: 6}))
    (pair,) = log.state.shares.pairs.values()
    assert (pair.start, pair.expired, pair.waiting) == (6, 4, 3), "counted when looked at"
    assert pair.saved() == (0, 0, [2, 3, 8, 8]), "and looking changes nothing"
    log.add(ack(6, 7))
    (pair,) = log.state.shares.pairs.values()
    assert (pair.saved(), pair.waiting) == ((9, 4, []), 1)


def test_a_forwarded_message_is_readable_at_once_or_a_timer() -> None:
    log = FedState()
    log.add(ops.create_topic("__retry.mail", {"partitions": 1}, 0))
    later = log.now_ms + 60_000
    log.add(share_ops.forward("__retry.mail", 0, [0, later, 0, 5], [ROW] * 4))
    partition = log.state.topics.topics["__retry.mail"].partitions[0]
    assert partition.index.end == 2 and log.state.timers.counts.total == 2
    records = waiting(log.state)
    assert len({record[:24] for record in records}) == 2, "each has a key of its own"
    assert log.add(share_ops.forward("gone", 0, [0], [ROW])) == []


def test_snapshots_hold_many_ranges_in_several_chunks() -> None:
    log = FedState()
    log.add(sent(9_000), begin(), begin(group="sms"))
    log.add(ack(*(n for at in range(1, 9_000, 2) for n in (at, at))))
    log.add(ack(5, 5, group="sms"))
    taken = capture(log.state, 1, [])
    chunks = [*snapshot.decode("x", b"".join(snapshot.encode(taken)))]
    assert sum(chunk[0] == "shares" for chunk in chunks) == 2
    release(log.state, taken)
    assert kept(reread(log.state)) == kept(log.state)


class Told(Pair):
    """What a damaged snapshot says of a pair."""

    def __init__(self, *columns: Any) -> None:
        super().__init__(PartitionIndex(), 0)
        self.columns = columns

    def saved(self) -> Any:
        return self.columns


@pytest.mark.parametrize(
    "row",
    [
        ["mail", 1, 0, 0, [1]],
        ["mail", 1, 5, 0, [3, 4]],
        ["mail", 1, 5, 0, [9, 8]],
        ["mail", 1, 5, 0, [9, 9, 8, 8]],
        ["mail", 1, -1, 0, []],
        ["mail", 99, 0, 0, []],
        ["mail", 1, 0, 0, [1 << 63, (1 << 63) + 1]],
        ["mail", 1, 0],
    ],
)
def test_senseless_ranges_in_a_snapshot_are_damage(row: list[Any]) -> None:
    state = state_with_shares().state
    group, slot, *columns = row
    taken = replace(capture(state, 1, []), shares=[((group, slot), Told(*columns))])
    with pytest.raises(CorruptLog, match="invalid"):
        reread(state, b"".join(snapshot.encode(taken)))


# -------------------------------------------------------------- settings and places


def changed(number: int = -1, group: str = "mail", **values: int | str | list[int]) -> bytes:
    return share_ops.group_settings(group, values, number)


def test_settings_change_one_by_one_and_in_one_order() -> None:
    log = FedState()
    assert log.add(changed()) == [[0, [DEFAULTS.values(), 0]]] and not log.state.shares.groups
    (result,) = log.add(changed(max_attempts=3))
    assert result == [0, [DEFAULTS.changed({"max_attempts": 3}).values(), log.index]]
    (stale,) = log.add(changed(log.index - 1, delays_ms=[5]))
    assert stale[0] == ResultCode.RETRY and stale[1] == result[1]
    (newer,) = log.add(changed(log.index - 1, delays_ms=[5]))
    assert newer[0] == 0 and newer[1][0]["delays_ms"] == [5]  # type: ignore[index]
    assert newer[1][0]["max_attempts"] == 3  # type: ignore[index]


def test_other_broker_groups_take_the_number_that_group_0_has_assigned() -> None:
    log = FedState()
    log.state.topics.gid = 1
    assert log.add(changed(17, max_attempts=3))[0][0] == 0
    assert log.add(changed(16, max_attempts=9))[0][0] == ResultCode.DUPLICATE
    assert log.add(changed(17, max_attempts=9))[0][0] == ResultCode.DUPLICATE
    (result,) = log.add(changed(18, lease_ms=5_000))
    assert result[1] == [DEFAULTS.changed({"max_attempts": 3, "lease_ms": 5_000}).values(), 18]


def test_the_kind_of_a_group_is_decided_once() -> None:
    log = FedState()
    log.add(sent(1))
    commit, kind = ops.group_offsets("mail", "t", {0: 1}), ResultCode.GROUP_KIND
    assert log.add(changed(kind="share"))[0][0] == 0
    assert log.add(changed(kind="stream")) == [[kind, "share"]]
    assert log.add(changed(kind="share"))[0][0] == 0
    assert log.add(commit) == [[kind, "share"]] and "mail" not in log.state.group_offsets
    log.add(ops.delete_group("mail", 1))
    assert log.add(commit) == [[0]]
    assert log.add(changed(kind="share")) == [[kind, "stream"]]
    assert log.add(changed(kind="stream"))[0][0] == 0
    assert log.add(begin()) == [[kind, "stream"]]


def test_attempts_belong_to_their_offset() -> None:
    log = FedState()
    log.add(sent(9))
    noted = log.state.attempts
    assert log.add(share_ops.places("mail", "t", [0, 5, 2, 1, 0, 0])) == [[0]]
    assert log.state.group_offsets["mail"]["t"] == {0: 5, 1: 0}
    assert (noted.at("mail", "t", 0, 5), noted.at("mail", "t", 0, 6), noted.at("mail", "t", 1, 0)) == (
        2,
        0,
        0,
    )
    log.add(share_ops.places("mail", "t", [0, 6, 0]))
    assert not noted
    log.add(share_ops.places("mail", "t", [0, 6, 1]))
    assert log.add(share_ops.places("mail", "gone", [0, 6, 1])) == [[ResultCode.UNKNOWN_TOPIC, ["gone"]]]
    log.add(ops.delete_topic("t"))
    assert not noted


def test_few_offsets_with_attempts_are_kept() -> None:
    attempts, partitions = Attempts(), range(ATTEMPTS_KEPT - 2)
    attempts.note("many", "t", [n for partition in partitions for n in (partition, 1, 1)])
    for group in ("a", "b", "c", "d"):
        attempts.note(group, "t", [0, 1, 1])
    assert len(attempts) == ATTEMPTS_KEPT
    assert [key[0] for key in attempts][-4:] == ["a", "b", "c", "d"]
    assert ("many", "t", 1) not in attempts and ("many", "t", 2) in attempts
