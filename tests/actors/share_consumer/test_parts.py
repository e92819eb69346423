"""The parts of a share consumer that decide, without threads and clock."""

from __future__ import annotations

from typing import Any

import pytest

from escrowmq.actors.share_consumer.held_batches import (
    AckAccumulator,
    Acquired,
    HeldBatches,
    flat,
    merged,
    pairs,
    ranges_of,
)
from escrowmq.actors.share_consumer.session import Asking
from escrowmq.replication.calling.answers import AcquiredRow
from escrowmq.replication.errors import CorruptLog, RecordNotHeld, Unavailable
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.model import ResultCode

SOURCE = ("orders", 0, 5)


def acquired(*leased: int, runs: tuple[tuple[int, int], ...] = ((0, 10),)) -> Acquired:
    """``runs``: base offset and number of messages, whose values are their offsets."""
    rows, told = b"", []
    for base, count in runs:
        made = b"".join(encode_row(None, b"%d" % (base + at), None, None) for at in range(count))
        rows, told = rows + made, [*told, (base, count, 1_000, len(made))]
    return Acquired(AcquiredRow("orders", 0, ResultCode.OK, 5, told, rows, leased))


def taken(content: Acquired, limit: int = 100) -> list[tuple[int, bytes, int]]:
    return [(r.offset, r.value, r.attempt) for r in content.take(limit, 1 << 20, content.offsets, 1)]


# ------------------------------------------------------------ ranges and acks


def test_offsets_become_ranges_and_come_back() -> None:
    assert ranges_of([3, 1, 2, 7, 9, 8, 2]) == [(1, 3), (7, 9)]
    assert merged([(5, 9), (1, 2), (3, 4), (7, 12)]) == [(1, 12)]
    assert list(pairs(flat([(1, 3), (7, 9)]))) == [(1, 3), (7, 9)]


def test_acks_wait_for_others_and_travel_as_ranges() -> None:
    gathering = AckAccumulator(linger_s=0.005, records_max=4)
    assert gathering.add(0, SOURCE, 1, 10.0), "the first one sets the time"
    assert not gathering.add(0, SOURCE, 2, 10.001) and not gathering.add(0, SOURCE, 9, 10.002)
    assert gathering.due(10.004) == [] and gathering.next_due() == 10.005
    assert gathering.add(0, SOURCE, 3, 10.003), "as many as go into one request: now"
    assert gathering.due(10.003) == [0] and len(gathering) == 4
    assert gathering.take(0) == {SOURCE: [(1, 3), (9, 9)]} and not gathering
    gathering.put_back(0, SOURCE, [(1, 3)], 11.0)
    gathering.add(0, SOURCE, 4, 10.9)
    assert gathering.due(11.0) == [0] and gathering.next_due(but=[0]) == float("inf")
    assert gathering.take(0) == {SOURCE: [(1, 4)]}


# ------------------------------------------------------------ what came


def test_only_what_was_handed_out_is_taken_wherever_runs_begin() -> None:
    content = acquired(2, 3, 0, 8, 11, 1, 20, 20, 2, runs=((0, 5), (5, 5), (10, 4), (20, 2)))
    assert content.offsets == {2, 3, 8, 9, 10, 11, 20}
    assert taken(content, 3) == [(2, b"2", 1), (3, b"3", 1), (8, b"8", 2)]
    assert content.next == 9
    assert taken(content) == [(9, b"9", 2), (10, b"10", 2), (11, b"11", 2), (20, b"20", 3)]
    assert content.next is None


@pytest.mark.parametrize("leased", [(4, 6, 0), (12, 12, 0), (3, 3, 0)])
def test_an_answer_that_lacks_a_row_is_damage(leased: tuple[int, ...]) -> None:
    with pytest.raises(CorruptLog, match="came without its row"):
        acquired(*leased, runs=((4, 2), (8, 2)))


def test_an_answer_with_other_bytes_than_it_says_is_damage() -> None:
    with pytest.raises(CorruptLog):
        Acquired(AcquiredRow("orders", 0, 0, 5, [(0, 1, 0, 7)], b"123", [0, 0, 0]))


# ------------------------------------------------------------ leases


def held_batches(extend_max_s: float = 60.0) -> HeldBatches:
    held = HeldBatches(extend_max_s)
    held.add(0, acquired(0, 9, 0), 100.0, 10.0)
    return held


def test_a_lease_is_extended_at_its_half_until_the_limit() -> None:
    held = held_batches(extend_max_s=20.0)
    records, _ = held.take(3, 100.0)
    now, extended = 100.0, 0
    while (now := held.next_tend()) < float("inf"):
        for batch in held.tend(now):
            held.extended(batch, [], now)
            extended += 1
        if not len(held):
            break
    assert (now, extended) == (125.0, 3), "at 105, 110, 115; not after 120"
    assert held.buffered == 0 and held.leases_lost == 3
    held.settled(held.find(records[0]), records[0].offset)  # an ack counts even now


def test_what_was_refused_is_not_handed_out_and_what_is_out_is_not_extended() -> None:
    held = held_batches()
    (first,), _ = held.take(1, 100.0)
    (batch,) = held.tend(105.0)
    held.extended(batch, [0, 4], 105.0)
    assert held.buffered == 8 and batch.tended == {1, 2, 3, 5, 6, 7, 8, 9}
    assert [record.offset for record in held.take(100, 106.0)[0]] == [1, 2, 3, 5, 6, 7, 8, 9]
    assert held.find(first) is batch


def test_a_failed_extension_is_tried_again_before_the_lease_ends() -> None:
    held = held_batches()
    (batch,) = held.tend(105.0)
    held.not_extended(batch, 105.0)
    assert held.tend(107.4) == [] and held.tend(107.5) == [batch]
    held.not_extended(batch, 109.9)
    assert held.tend(110.0) == [] and len(held) == 0 and held.take(1, 110.0) == ([], [])


def test_settled_records_are_not_known_any_more_and_reopened_ones_are() -> None:
    held = held_batches()
    (record,), _ = held.take(1, 100.0)
    batch = held.find(record)
    held.settled(batch, record.offset)
    with pytest.raises(RecordNotHeld):
        held.find(record)
    held.reopened(batch, record.offset)
    assert held.find(record) is batch and len(held) == 10


def test_the_buffer_is_given_back_without_what_is_out() -> None:
    held = held_batches()
    held.take(4, 100.0)
    assert held.waits_since() == 100.0
    ((_, offsets),) = held.give_back()
    assert offsets == [4, 5, 6, 7, 8, 9] and held.buffered == 0 and len(held) == 4
    assert held.give_back() == [] and held.waits_since() == float("inf")


# ------------------------------------------------------------ asking


def asked(asking: Asking, *about: Any) -> list[tuple[int, int]]:
    return [(group.gid, group.asked) for group in asking.next(*about)]


def test_groups_share_what_is_missing_and_take_turns() -> None:
    asking = Asking(range(10), at_a_time=4, wait_s=1.0)
    assert asking.wait_s == pytest.approx(1 / 3), "ten groups, four at a time"
    assert asked(asking, 0.0, 0, 100) == [(0, 25), (1, 25), (2, 25), (3, 25)]
    assert asked(asking, 0.0, 0, 100) == [] and not asking.may_ask(0.0, 0, 100)
    for group in list(asking._groups):
        if group.gid in (0, 2):
            asking.answered(group, 0.0, 1.0)
    assert [gid for gid, _ in asked(asking, 1.0, 0, 100)] == [4, 5]


def test_nothing_is_asked_for_while_half_is_there_or_nobody_polls() -> None:
    asking = Asking([0], 8, 1.0)
    assert asked(asking, 0.0, 51, 100) == [] and asked(asking, 0.0, 0, 0) == []
    assert asked(asking, 0.0, 50, 100) == [(0, 50)]


def test_a_group_that_fails_is_left_alone_for_a_while_and_reported_when_it_lasts() -> None:
    asking = Asking([0, 1], 8, 1.0)
    first, second = asking.next(0.0, 0, 10)
    asking.failed(first, Unavailable("no leader"), 5.0, asked_at=0.0)
    asking.answered(second, 0.2, 5.0)
    assert asked(asking, 5.1, 0, 10) == [] and asking.next_ask(5.1) == 5.2
    assert asking.trouble(20.0, for_s=30.0) is None
    assert isinstance(asking.trouble(30.0, for_s=30.0), Unavailable)
