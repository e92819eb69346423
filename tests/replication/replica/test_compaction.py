"""Messages that wait long are stored anew: the log before them can go, and nothing else changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.timer_ops import owner_of
from escrowmq.replication.log.segment import SegmentInfo
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica import compaction
from escrowmq.replication.replica.compaction import worth_carrying
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.timers.record import TIME_MAX
from tests.support.requests import message
from tests.support.single import Single

OWNER, BLOCK = 7, 4
FAR_MS = 1_000_000
LIMITS = Limits(carry_ahead_ms=100, retention_interval_ms=0, retention_pause_ms=0)


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Single]:
    running = opened(tmp_path)
    yield running
    running.close()


def started(path: Path) -> Single:
    """Segments of four entries, and blocks of as many; retention keeps what it must."""
    return Single(path, segment_bytes=4_000, limits=LIMITS, block_entries=BLOCK)


def opened(path: Path) -> Single:
    running = started(path)
    running.topic(partitions=2, retention_ms=1)
    return running


def schedule(single: Single, *times: int, first: int = 0, size: int = 1) -> None:
    """A message for each time; its value is its ordinal."""
    rows = [encode_row(None, f"{first + n}:{'x' * size}".encode(), None, None) for n in range(len(times))]
    request = timer_ops.scheduled("t", 0, "p", 0, -1, times, rows, OWNER, first, -1, 0)
    assert single.submit(request)[0][0] == 0


def cancel(single: Single, time_ms: int, ordinal: int, owner: int = OWNER) -> list[object]:
    (result,) = single.submit(timer_ops.cancel("t", 0, [(time_ms, owner, ordinal)], 0))
    return list(result)


def fill(single: Single, count: int = 12) -> None:
    for _ in range(count):
        single.submit(message("t", 1, [b"x" * 900]))


def retain(single: Single, ms: int = 400) -> None:
    """Retention, and passes if there is something to carry."""
    for _ in range(ms // 20):
        single.replica.on_timer(single.now_ms)
        single.send(now_ms=single.now_ms + 20)


def values(single: Single) -> list[int]:
    """Ordinals of what is readable and still kept."""
    return [int(text.split(":")[0]) for text in single.texts()]


def stored(single: Single) -> int:
    """Records that wait: they are as many as the state says."""
    waiting = single.state.timers
    records, _ = waiting.store.listed(waiting.released, TIME_MAX, 1 << 30)
    assert len(records) == waiting.counts.total
    return len(records)


def test_a_message_that_waits_long_does_not_keep_the_log(single: Single) -> None:
    at = single.now_ms + FAR_MS
    schedule(single, at, at + 1)
    index = single.journal.last_index
    fill(single, 30)
    retain(single)
    assert single.journal.first_index > index
    told = single.replica.admission.carrying
    assert stored(single) == 2 and told.carried == 2
    assert (told.entries, told.carried_bytes) == (1, single.state.timers.counts.total_bytes)
    fill(single, 30)
    retain(single)
    assert single.journal.first_index > index + 30, "carried again, when the log has moved on"
    single.send(now_ms=at + 5)
    assert values(single) == [0, 1] and stored(single) == 0


def test_the_log_that_is_kept_for_waiting_messages_alone_is_told(single: Single) -> None:
    told = single.replica.admission.carrying
    at = single.now_ms + FAR_MS
    fill(single)
    retain(single)
    assert told.pinned_bytes == 0, "nothing waits"
    schedule(single, *range(at, at + 50), size=900)
    fill(single, 30)
    schedule(single, *range(at, at + 50), size=900, first=50)  # too much to be carried
    retain(single)
    segments = single.journal.segments()
    assert told.carried == 0
    assert 40_000 < told.pinned_bytes < sum(segment.size for segment in segments)
    single.send(now_ms=at + 60)
    retain(single)
    assert stored(single) == 0 and told.pinned_bytes == 0


@pytest.mark.parametrize(
    ("waiting", "needed", "pinned"),
    [(1, 10, 30), (1, 1, 0), (1, 4, 10), (1, 6, 10), (5, 10, 20), (8, 10, 0), (1, 20, 30)],
)
def test_pinned_are_whole_segments_between_what_waits_and_what_else_is_needed(
    waiting: int, needed: int, pinned: int
) -> None:
    segments = [SegmentInfo(f"{n}", first, first + 3, n * 10, True) for n, first in ((1, 1), (2, 4), (3, 8))]
    assert compaction.pinned(segments, waiting, needed) == pinned


def test_a_restart_and_a_snapshot_find_what_was_carried(tmp_path: Path) -> None:
    single = opened(tmp_path)
    at = single.now_ms + FAR_MS
    schedule(single, at, at + 1, at + 2)
    fill(single, 30)
    retain(single)
    fill(single, 30)
    retain(single)
    assert cancel(single, at + 1, 1) == [0]
    kept = single.journal.first_index
    for redone in (False, True):
        single.close()
        if redone:  # the older snapshot, and more of the log
            (tmp_path / f"{single.checkpoints.indexes[-1]:016x}.snap").unlink()
        single = started(tmp_path)
        assert single.journal.first_index == kept and stored(single) == 2
    assert cancel(single, at + 1, 1) == [0], "cancelled before"
    single.send(now_ms=at + 5)
    assert values(single) == [0, 2] and stored(single) == 0
    assert cancel(single, at, 0) == [ResultCode.PARTIAL, [[0, ResultCode.UNKNOWN_TIMER, None]]]
    single.close()


def test_what_is_cancelled_before_or_after_it_was_carried_is_never_readable(single: Single) -> None:
    at = single.now_ms + FAR_MS
    schedule(single, *(at + n for n in range(4)))
    assert cancel(single, at, 0) == [0]
    fill(single, 30)
    retain(single)
    assert single.replica.admission.carrying.carried == 3
    assert cancel(single, at + 1, 1) == [0] and cancel(single, at, 0) == [0]
    single.send(now_ms=at + 9)
    assert values(single) == [2, 3] and stored(single) == 0


def test_a_cancellation_waits_for_what_is_being_carried(single: Single) -> None:
    at = single.now_ms + FAR_MS
    schedule(single, at, at + 1)
    single.replica.admission.carrying.begin(single.journal.last_index + 1)
    single.node.held = []
    answers = single.send(timer_ops.cancel("t", 0, [(at, OWNER, 0)], 0), now_ms=single.now_ms + 60)
    assert len(single.node.held) == 1 and answers == []
    single.node.release()
    answers += single.send()
    assert answers == [("ok", [[0]])] and stored(single) == 1
    single.send(now_ms=at + 5)
    assert values(single) == [1]


def test_what_is_about_to_be_cancelled_is_left_behind(single: Single) -> None:
    at = single.now_ms + FAR_MS
    schedule(single, at, at + 1)
    single.node.held = []
    answers = single.send(timer_ops.cancel("t", 0, [(at, OWNER, 0)], 0))
    single.replica.admission.carrying.begin(single.journal.last_index + 1)
    single.send()
    assert len(single.node.held) == 2
    single.node.release()
    assert answers == [("ok", [[0]])] and stored(single) == 1
    assert single.replica.admission.carrying.carried == 1
    single.send(now_ms=at + 5)
    assert values(single) == [1]


def test_a_release_waits_for_what_is_being_carried(single: Single) -> None:
    at = single.now_ms + 150
    schedule(single, at - 140, at)
    single.replica.admission.carrying.begin(single.journal.last_index + 1)
    single.node.held = []
    single.send(now_ms=single.now_ms + 1)
    assert len(single.node.held) == 1, "the later one is carried"
    single.send(now_ms=at + 10)
    assert len(single.node.held) == 2, "a release, of the first one"
    single.node.release()
    assert values(single) == [0] and stored(single) == 1
    single.send()
    assert values(single) == [0, 1] and stored(single) == 0


def test_an_id_that_comes_again_keeps_its_message_when_the_older_one_is_carried(single: Single) -> None:
    """The second one's message lies between the older one's old and new position."""
    at = single.now_ms + FAR_MS

    def prepare(value: str) -> None:
        row = encode_row(None, value.encode(), None, None)
        timed = timer_ops.pre_scheduled("t", 0, [0], [len(row)], [at], [0], [row], 0)
        single.submit(ops.prepare("app", "t", ["x"], None, 60_000, 0, [1], -1, 1) + timed)

    prepare("1:older")
    single.submit(ops.commit("app", ["x"]))
    single.state.transactions.look("app").settled.young.clear()
    bound = single.journal.last_index + 1
    prepare("2:newer")
    single.replica.admission.carrying.begin(bound)
    single.send(now_ms=single.now_ms + 60)
    assert single.replica.admission.carrying.carried == 1
    single.submit(ops.commit("app", ["x"]))
    assert stored(single) == 2
    single.send(now_ms=at)
    assert sorted(values(single)) == [1, 2]
    assert cancel(single, at, 0, owner_of("app", "x"))[0] == ResultCode.PARTIAL


def test_a_deleted_topic_is_left_behind(single: Single) -> None:
    at = single.now_ms + FAR_MS
    schedule(single, at)
    single.submit(ops.create_topic("u", {"partitions": 1}))
    single.node.held = []
    single.send(ops.delete_topic("t"))
    single.replica.admission.carrying.begin(single.journal.last_index + 1)
    single.send(now_ms=single.now_ms + 60)
    assert len(single.node.held) == 1, "nothing is carried"
    single.node.release()
    assert single.state.timers.counts.total == 0
    single.topic(partitions=2)
    single.send(now_ms=at)
    assert single.texts() == []


def test_a_refused_entry_is_carried_again(single: Single) -> None:
    at = single.now_ms + FAR_MS
    schedule(single, at)
    single.replica.admission.carrying.begin(single.journal.last_index + 1)
    single.node.held = []
    single.send(now_ms=single.now_ms + 60)
    ((_, done),), single.node.held = single.node.held, None
    done(None, False)
    assert single.replica.admission.carrying.carried == 0
    single.send(now_ms=single.now_ms + 100)
    assert single.replica.admission.carrying.carried == 1 and stored(single) == 1


def test_an_entry_has_a_bounded_size_and_comes_after_a_while(single: Single) -> None:
    at, most, count = single.now_ms + FAR_MS, compaction.CARRIED_MAX, 2 * compaction.CARRIED_MAX + 100
    schedule(single, *(at + n for n in range(count)))
    single.replica.admission.carrying.begin(single.journal.last_index + 1)
    seen: dict[int, int] = {}
    began_ms = single.now_ms
    for _ in range(200):
        single.send()
        seen.setdefault(single.replica.admission.carrying.carried, single.now_ms - began_ms)
    pause_ms = most * 1000 // compaction.MESSAGES_PER_S
    assert seen == {most: 1, 2 * most: 1 + pause_ms, count: 1 + 2 * pause_ms} and stored(single) == count


def test_whatever_happens_each_is_delivered_once_or_cancelled(tmp_path: Path) -> None:
    """Messages are scheduled, carried, cancelled and released in any order, with restarts, against a dict."""
    for seed in range(6):
        rng = random.Random(seed)
        single = opened(tmp_path / str(seed))
        due: dict[int, int] = {}
        delivered: list[int] = []
        for _ in range(60):
            what = rng.random()
            if what < 0.3:
                times = [single.now_ms + rng.choice((150, 300, 2_000, 9_000)) for _ in range(3)]
                schedule(single, *times, first=len(due))
                due.update(enumerate(times, len(due)))
            elif what < 0.45 and due:
                ordinal = rng.choice(list(due))
                time_ms = due[ordinal]
                cancelled = time_ms < 0 or cancel(single, time_ms, ordinal) == [0]
                if cancelled:
                    due[ordinal] = -1
            elif what < 0.6:
                fill(single, 6)
            elif what < 0.8:
                single.replica.admission.carrying.begin(rng.randrange(1, single.journal.last_index + 1))
            elif what < 0.9:
                single.send(now_ms=single.now_ms + rng.choice((10, 200, 1_000)))
            elif what < 0.95:
                single.fail_over()
            else:
                term = single.node.term
                single.close()
                single = started(tmp_path / str(seed))
                single.node.term = term
            for _ in range(3):
                single.send(now_ms=single.now_ms + 20)
        single.send(now_ms=single.now_ms + 10_000)
        for _ in range(5):
            single.send()
        delivered = sorted(values(single))
        expected = sorted(ordinal for ordinal, time_ms in due.items() if time_ms >= 0)
        assert delivered == expected and single.state.timers.counts.total == 0, f"seed {seed}"
        single.close()


def segments_of(*firsts: int, size: int = 100) -> list[SegmentInfo]:
    pairs = zip(firsts, (*firsts[1:], firsts[-1] + 10), strict=True)
    return [SegmentInfo("s", first, after - 1, size, sealed=True) for first, after in pairs]


def test_a_pass_is_worth_it_if_it_frees_more_than_twice_what_it_writes() -> None:
    log = segments_of(1, 11, 21, 31)
    assert worth_carrying(log, [], 4, 40) is None, "nothing waits"
    assert worth_carrying(log, [(0, 40)], 4, 40) == 32, "all that the blocks allow"
    assert worth_carrying(log, [(0, 40)], 4, 24) == 24, "what else is needed"
    assert worth_carrying(log, [(0, 40)], 4, 11) is None, "the block ends behind that"
    assert worth_carrying(log, [(0, 60)], 4, 40) == 32
    assert worth_carrying(log, [(0, 160)], 4, 40) is None, "it would write more than half of it"
    assert worth_carrying(log, [(0, 10), (12, 150)], 4, 40) == 12, "only the first segment is worth it"
