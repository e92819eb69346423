"""Delayed messages at one replica: when they become readable, what is cancelled, and what a restart finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from escrowmq.replication.format import ops, timer_ops
from escrowmq.replication.format.codec import encode_row
from escrowmq.replication.format.timer_ops import owner_of
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica import releases
from escrowmq.replication.replica.admission import COPIES_MAX
from escrowmq.replication.replica.entry_writing import COPY_BYTES_MAX
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.timers.store import TimerStore
from tests.support.requests import message
from tests.support.single import Single

START_MS = 2_000_000
OWNER = 7
#: Looks for what may go whenever there is time.
RETAINING = Limits(retention_interval_ms=0, retention_pause_ms=0)


def rows_of(values: Sequence[str]) -> list[bytes]:
    return [encode_row(None, value.encode(), None, None) for value in values]


def scheduled(
    times: Sequence[int], values: Sequence[str], *, first: int = 0, seq: int = -1, partition: int = 0
) -> bytes:
    rows = rows_of(values)
    return timer_ops.scheduled("t", partition, "p", 0, seq, times, rows, OWNER, first, -1, 0)


def prepared(tx_id: str, times: Sequence[int], values: Sequence[str], *plain: str, part: int = 0) -> bytes:
    rows, now = rows_of(values), rows_of(plain)
    attached = [
        timer_ops.pre_scheduled(
            "t", 0, [0] * len(rows), [len(r) for r in rows], times, list(range(len(rows))), rows, 0
        )
    ]
    if plain:
        attached.append(ops.pre_message("t", 0, [0] * len(now), [len(r) for r in now], now))
    return ops.prepare("app", "t", [tx_id], None, 60_000, part, [1], -1, len(attached)) + b"".join(attached)


def cancel(*keys: tuple[int, int, int]) -> bytes:
    return timer_ops.cancel("t", 0, keys, 0)


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Single]:
    running = opened(tmp_path)
    yield running
    running.close()


def opened(path: Path, limits: Limits | None = None) -> Single:
    running = Single(path, limits=limits)
    running.topic(partitions=2)
    running.now_ms = max(running.now_ms, START_MS)
    return running


def pass_ms(single: Single, ms: int) -> None:
    """Let the leader look at every millisecond of the next ones."""
    for _ in range(ms):
        single.send()


def waiting(single: Single) -> int:
    return single.state.timers.counts.total


def test_a_message_is_readable_at_its_time_and_not_before(single: Single) -> None:
    at = single.now_ms + 10
    (result,) = single.submit(scheduled([at, at - 2, -3], ["last", "second", "first"]))
    assert result == [0, [-1, single.now_ms]] and waiting(single) == 3
    seen: dict[str, int] = {}
    for _ in range(12):
        single.send()
        for name in single.texts():
            seen.setdefault(name, single.now_ms)
    assert seen == {"first": at - 9 + 3, "second": at - 2, "last": at}
    assert single.texts() == ["first", "second", "last"] and waiting(single) == 0


def test_what_is_behind_many_cancelled_ones_is_released(single: Single) -> None:
    """The leader asked again from the cursor, met the same cancelled ones, and released nothing any more."""
    single.state.timers.store = TimerStore(looks_per_call=1)
    at, many = single.now_ms + 50, 5 * releases.RELEASED_MAX
    single.submit(scheduled([at + n * 13 // many for n in range(many)], ["gone"] * many))
    single.submit(scheduled([at + 12, at + 14], ["behind", "last"], first=many))
    single.submit(cancel(*((at + n * 13 // many, OWNER, n) for n in range(many))))
    assert waiting(single) == 2
    pass_ms(single, 90)
    assert single.texts() == ["behind", "last"] and waiting(single) == 0


def test_a_time_that_is_past_is_readable_at_once(single: Single) -> None:
    single.submit(scheduled([5, 0], ["a", "b"]))
    single.send(now_ms=single.now_ms)
    assert single.texts() == ["a", "b"]


def test_a_release_goes_into_one_entry_with_what_else_waits(single: Single) -> None:
    single.submit(scheduled([-5], ["later"]))
    single.now_ms += 10
    index = single.journal.last_index
    single.submit(message("t", 0, [b"plain"]))
    assert single.journal.last_index == index + 1 and single.texts() == ["later", "plain"]


def test_a_repetition_is_recognised_and_sequence_numbers_are_those_of_plain_messages(single: Single) -> None:
    plain = ops.message("t", 0, "p", 0, 0, rows_of(["plain"]))
    single.submit(plain)
    (first,) = single.submit(scheduled([-5], ["later"], seq=1))
    stored_ms = single.now_ms
    assert single.submit(scheduled([-5], ["later"], seq=1)) == [[ResultCode.DUPLICATE, [-1, stored_ms]]]
    assert first == [0, [-1, stored_ms]] and waiting(single) == 1
    assert single.submit(scheduled([-5], ["other"], seq=3)) == [[ResultCode.OUT_OF_SEQUENCE, 2]]
    assert single.submit(plain) == [[ResultCode.DUPLICATE, [0, stored_ms - 1]]]
    assert single.submit(ops.message("t", 0, "p", 0, 2, rows_of(["third"])))[0][0] == 0


def test_a_transaction_schedules_when_it_is_committed(single: Single) -> None:
    """RocketMQ's users lose such messages, or see them before the commit: a delay inside a transaction."""
    at = single.now_ms + 20
    single.submit(prepared("x", [at, -15], ["absolute", "relative"], "plain"))
    pass_ms(single, 30)
    assert single.texts() == [] and waiting(single) == 0, "not committed: nothing counts down"
    single.submit(prepared("y", [at + 20, -15], ["absolute y", "relative y"]))
    single.submit(prepared("z", [-1], ["never"]), ops.rollback("app", ["z"]))
    assert single.submit(ops.commit("app", ["x", "y"])) == [[0]]
    committed_ms = single.now_ms
    assert single.texts() == ["plain", "absolute"], "its time is past: at once"
    seen: dict[str, int] = {}
    for _ in range(30):
        single.send()
        seen |= {name: single.now_ms for name in single.texts() if name not in seen}
    assert (seen.pop("plain"), seen.pop("absolute")) == (committed_ms + 1, committed_ms + 1)
    assert seen == {
        "absolute y": max(at + 20, committed_ms + 1),
        "relative": committed_ms + 15,
        "relative y": committed_ms + 15,
    }


def test_later_parts_of_a_transaction_schedule_too(single: Single) -> None:
    single.submit(prepared("x", [-5], ["one"]), prepared("x", [-6], ["two"], part=1))
    single.submit(prepared("x", [-6], ["two"], part=1))
    assert single.state.transactions.look("app").open["x"].messages == 2
    single.submit(ops.commit("app", ["x"]))
    pass_ms(single, 10)
    assert single.texts() == ["one", "two"]


def test_what_is_cancelled_in_time_is_never_readable(single: Single) -> None:
    at = single.now_ms + 10
    single.submit(scheduled([at, at, at + 1], ["kept", "cancelled", "kept too"]))
    assert single.submit(cancel((at, OWNER, 1))) == [[0]] and waiting(single) == 2
    assert single.submit(cancel((at, OWNER, 1))) == [[0]], "again is no error"
    unknown = [[1, ResultCode.UNKNOWN_TIMER, None], [2, ResultCode.UNKNOWN_TIMER, None]]
    asked = single.submit(cancel((at, OWNER, 1), (at, OWNER, 9), (at, 8, 1)))
    assert asked == [[ResultCode.PARTIAL, unknown]]
    pass_ms(single, 15)
    assert single.texts() == ["kept", "kept too"] and waiting(single) == 0
    assert single.submit(cancel((at, OWNER, 1))) == [[0]], "also when its time is past"
    late = [[0, ResultCode.UNKNOWN_TIMER, None]]
    assert single.submit(cancel((at, OWNER, 0))) == [[ResultCode.PARTIAL, late]]


def test_a_tombstone_may_be_forgotten_before_the_record_that_it_kills(tmp_path: Path) -> None:
    """Found by simulation: the record is in a file, the tombstone was in memory."""
    single = Single(tmp_path, segment_bytes=2_000)
    single.topic(partitions=2)
    at = single.now_ms + 2_000
    single.submit(scheduled([at, at + 1_000_000], ["cancelled", "much later"]))
    for _ in range(4):
        single.submit(message("t", 1, [b"x" * 900]))
    assert single.state.timers.store.files
    assert single.submit(cancel((at, OWNER, 0))) == [[0]]
    single.submit(scheduled([at + 1_000], ["later"], first=2))
    single.send(now_ms=at + 2_000)
    assert single.texts() == ["later"] and single.submit(cancel((at, OWNER, 0))) == [[0]]
    single.close()


def test_a_cancelled_key_may_come_again(single: Single) -> None:
    at, key = single.now_ms + 30, (0, 0, 0)
    for round_ in range(2):
        single.submit(prepared("x", [at], [f"round {round_}"]))
        single.submit(ops.commit("app", ["x"]))
        single.state.transactions.look("app").settled.young.clear()
        key = (at, owner_of("app", "x"), 0)
        if not round_:
            assert single.submit(cancel(key)) == [[0]]
    pass_ms(single, 1_100)  # the store has forgotten all of it by then
    single.submit(scheduled([-1], ["later"]))
    pass_ms(single, 1_100)
    assert single.texts() == ["round 1", "later"]
    assert single.submit(cancel(key))[0][0] == ResultCode.PARTIAL


def test_the_log_decides_between_a_cancel_and_a_release(single: Single) -> None:
    at = single.now_ms + 5
    single.submit(scheduled([at, at, at], ["a", "b", "c"]))
    single.node.held = []
    answers = single.send(cancel((at, OWNER, 0)), now_ms=at - 1)
    answers += single.send(cancel((at, OWNER, 1)), now_ms=at)  # behind the release, in one entry
    answers += single.send(cancel((at, OWNER, 0), (at, OWNER, 2)), now_ms=at + 1)
    assert answers == []
    single.node.release()
    assert single.texts() == ["b", "c"] and waiting(single) == 0


def test_a_release_waits_for_messages_that_are_only_coming(single: Single) -> None:
    """Otherwise the cursor would pass them."""
    at = single.now_ms + 5
    single.submit(scheduled([at + 1], ["later"]))
    single.submit(prepared("x", [at], ["of the transaction"]))
    single.node.held = []
    single.send(scheduled([at], ["soon"]), ops.commit("app", ["x"]), now_ms=at - 1)
    single.send(now_ms=at + 2)
    assert len(single.node.held) == 1, "no release yet"
    single.node.release()
    pass_ms(single, 1)
    assert single.texts()[-1] == "later" and sorted(single.texts()[:2]) == ["of the transaction", "soon"]


def test_a_restart_finds_what_waits(tmp_path: Path) -> None:
    single = opened(tmp_path)
    at = single.now_ms + 10
    single.submit(scheduled([at - 8, at, at], ["gone", "kept", "cancelled"]))
    single.submit(cancel((at, OWNER, 2)))
    pass_ms(single, 3)
    single.close()
    again = opened(tmp_path)
    again.now_ms = at - 2
    assert again.texts() == ["gone"] and waiting(again) == 1
    pass_ms(again, 4)
    assert again.texts() == ["gone", "kept"]
    again.close()


def test_a_snapshot_holds_what_waits(tmp_path: Path) -> None:
    single = Single(tmp_path, segment_bytes=2_000)
    single.topic(partitions=2)
    at = single.now_ms + 200
    single.submit(scheduled([at - 195, at, at, at + 400_000], ["gone", "kept", "cancelled", "much later"]))
    single.submit(cancel((at, OWNER, 2)))
    single.submit(prepared("x", [at + 5], ["of the open transaction"]))
    pass_ms(single, 10)
    for _ in range(8):
        single.submit(message("t", 1, [b"x" * 900]))
    assert single.checkpoints.indexes and waiting(single) == 2
    single.close()
    again = Single(tmp_path)
    assert again.redone < 5 and waiting(again) == 2 and again.texts() == ["gone"]
    assert again.submit(cancel((at, OWNER, 2))) == [[0]], "cancelled before"
    again.submit(ops.commit("app", ["x"]))
    again.send(now_ms=at + 10)
    assert again.texts() == ["gone", "kept", "of the open transaction"]
    assert again.submit(cancel((at + 400_000, OWNER, 3))) == [[0]] and waiting(again) == 0
    again.close()


def test_a_deleted_topic_takes_its_delayed_messages_along(single: Single) -> None:
    single.submit(scheduled([-5], ["of the old topic"]))
    single.submit(prepared("x", [-5], ["in a transaction"]))
    single.submit(ops.delete_topic("t"))
    assert waiting(single) == 0
    single.topic(partitions=2)
    single.submit(ops.commit("app", ["x"]))
    assert waiting(single) == 0
    pass_ms(single, 10)
    assert single.texts() == []
    assert single.submit(ops.delete_topic("nothing"), cancel((single.now_ms + 9, OWNER, 0)))[1] == [
        ResultCode.PARTIAL,
        [[0, ResultCode.UNKNOWN_TIMER, None]],
    ]
    assert single.submit(timer_ops.cancel("t", 7, [(5, 1, 1)], 0)) == [[ResultCode.BAD_PARTITION]]
    assert single.submit(timer_ops.cancel("u", 0, [(5, 1, 1)], 0)) == [[ResultCode.UNKNOWN_TOPIC]]
    assert single.submit(timer_ops.cancel("t", 0, [(5, 1, 1)], 3))[0][0] == ResultCode.OTHER_TOPIC


def test_only_so_many_may_wait(tmp_path: Path) -> None:
    single = opened(tmp_path, Limits(timers_max=2))
    single.submit(scheduled([-5, -5], ["a", "b"]))
    assert single.submit(scheduled([-5], ["c"])) == [[ResultCode.TOO_MANY_SCHEDULED, 2]]
    assert single.submit(prepared("x", [-5], ["d"])) == [[ResultCode.TOO_MANY_SCHEDULED, 2]]
    assert single.submit(message("t", 0, [b"plain"]))[0][0] == 0
    pass_ms(single, 6)
    assert single.texts() == ["plain", "a", "b"] and single.submit(scheduled([-5], ["e"]))[0][0] == 0
    single.close()


def test_one_key_cannot_be_scheduled_without_end(single: Single) -> None:
    """All copies of a key are released together, so a release would have no bound."""
    at = single.now_ms + 1_000
    codes = {single.submit(scheduled([at + n % 2], ["again"], first=n % 2))[0][0] for n in range(100)}
    assert codes == {0, ResultCode.TOO_MANY_SCHEDULED}
    assert waiting(single) == 2 * COPIES_MAX
    assert single.submit(scheduled([at], ["another"], first=2)) == [[0, [-1, single.now_ms]]]
    single.submit(scheduled([at], ["sent"], first=3, seq=0))
    for n in range(COPIES_MAX):
        assert single.submit(scheduled([at], ["more"], first=3, seq=1 + n))[0][0] == (
            0 if n < COPIES_MAX - 1 else ResultCode.TOO_MANY_SCHEDULED
        )
    assert single.submit(scheduled([at], ["sent"], first=3, seq=COPIES_MAX - 1))[0][0] == ResultCode.DUPLICATE


def test_a_release_has_a_bounded_size(single: Single) -> None:
    count = 2 * releases.RELEASED_MAX + 1
    single.submit(scheduled([-500] * count, [str(n) for n in range(count)]))
    index = single.journal.last_index
    single.send(now_ms=single.now_ms + 500)
    assert single.texts() == [str(n) for n in range(count)]
    assert single.journal.last_index == index + 3


def test_bodies_of_other_segments_are_copied_and_retention_keeps_what_waits(tmp_path: Path) -> None:
    single = Single(tmp_path, segment_bytes=4_000, limits=RETAINING)
    single.topic(retention_ms=1)
    at = single.now_ms + 100
    single.submit(scheduled([at, at], ["one", "two"]))
    index = single.journal.last_index
    for _ in range(20):
        single.submit(message("t", 0, [b"x" * 900]))
    for _ in range(5):
        single.replica.on_timer(single.now_ms)
        single.send()
    assert single.journal.first_index <= index
    single.send(now_ms=at)
    assert single.texts()[-2:] == ["one", "two"]
    kept = single.state.topics.topics["t"].partitions[0].index
    last = kept.runs_from(kept.end - 2)[-1]
    assert last.log_index > index, "copied into the entry that released them"
    single.close()


def test_copies_of_one_key_are_released_together(tmp_path: Path) -> None:
    """An id of the application that was used twice. A release that ended between the two moved the cursor
    past both."""
    single = Single(tmp_path, segment_bytes=4_000)
    single.topic()
    at, size = single.now_ms + 100, COPY_BYTES_MAX * 3 // 4
    for value in "ab":
        single.submit(scheduled([at], [value * size]))
    for _ in range(5):
        single.submit(message("t", 0, [b"x" * 900]))
    single.send(now_ms=at)
    assert [text[0] for text in single.texts()[5:]] == ["a", "b"] and waiting(single) == 0
    single.close()


def test_retention_when_the_oldest_block_begins_before_the_log(tmp_path: Path) -> None:
    """Found by simulation: the segment of an entry was looked up that is not there any more."""
    single = Single(tmp_path, segment_bytes=4_000, limits=RETAINING)
    single.topic(retention_ms=1)
    for _ in range(2):
        for _ in range(20):
            single.submit(message("t", 0, [b"x" * 900]))
        for _ in range(5):
            single.replica.on_timer(single.now_ms)
            single.send()
        first = single.journal.first_index
        single.submit(scheduled([-1_000_000], ["later"]))
    assert first > 1 and single.state.timers.counts.oldest_index() == 1
    assert single.journal.first_index == first, "nothing more goes while it waits"
    single.close()


def test_a_lost_leadership_releases_again_from_the_cursor_on(single: Single) -> None:
    at = single.now_ms + 5
    single.submit(scheduled([at, at + 1], ["a", "b"]))
    single.node.held = []
    single.send(now_ms=at)
    assert len(single.node.held) == 1
    lost, single.node.held = single.node.held, None
    for _, done in lost:
        done(None, None)
    single.fail_over()
    pass_ms(single, 3)
    assert single.texts() == ["a", "b"]


@pytest.mark.parametrize("told", [True, False], ids=["its end is not known", "it never ends"])
def test_a_cancellation_that_is_lost_with_the_leadership_holds_nothing_back(
    single: Single, told: bool
) -> None:
    """Finds cancellations that count as under way for good: their messages would not be released, and no
    other cancellation of them would be written."""
    at = single.now_ms + 10
    single.submit(scheduled([at, at, at], ["a", "b", "c"]))
    single.node.held = []
    single.send(cancel((at, OWNER, 0)), cancel((at, OWNER, 1)))
    assert len(single.node.held) == 1
    lost, single.node.held = single.node.held, None
    for _, done in lost if told else ():
        done(None, None)
    single.fail_over()
    assert single.submit(cancel((at, OWNER, 1))) == [[0]] and waiting(single) == 2
    pass_ms(single, 15)
    assert single.texts() == ["a", "c"] and waiting(single) == 0


def test_a_refused_release_is_tried_again_a_little_later(single: Single) -> None:
    at = single.now_ms + 5
    single.submit(scheduled([at], ["a"]))
    propose = single.node.propose
    single.node.propose = lambda command, done: done(None, False)  # type: ignore[method-assign]
    single.send(now_ms=at)
    single.node.propose = propose  # type: ignore[method-assign]
    assert single.replica.wake_in_ms() == releases.PAUSE_MS
    single.send(now_ms=at + releases.PAUSE_MS)
    assert single.texts() == ["a"]


def test_the_leader_says_when_it_wants_to_be_woken(single: Single) -> None:
    assert single.replica.wake_in_ms() is None
    single.submit(scheduled([-700, -30], ["a", "b"]))
    single.send()
    assert single.replica.wake_in_ms() == 29
    pass_ms(single, 29)
    assert single.texts() == ["b"] and single.replica.wake_in_ms() == 670


def test_what_is_sent_again_is_not_refused_for_what_has_filled_the_group_since(tmp_path: Path) -> None:
    """Its answer was lost. A refusal says that nothing was done."""
    single = opened(tmp_path, Limits(timers_max=2))
    assert single.submit(prepared("x", [-500], ["in x"])) == [[0]]
    assert single.submit(scheduled([-500], ["a"], seq=0))[0][0] == ResultCode.OK
    assert single.submit(scheduled([-500], ["b"], seq=1))[0][0] == ResultCode.OK
    assert single.submit(scheduled([-500], ["b"], seq=1))[0][0] == ResultCode.DUPLICATE
    assert single.submit(prepared("x", [-500], ["in x"])) == [[0]]
    assert single.submit(scheduled([-500], ["c"], seq=2)) == [[ResultCode.TOO_MANY_SCHEDULED, 2]]
    assert single.submit(prepared("y", [-500], ["d"])) == [[ResultCode.TOO_MANY_SCHEDULED, 2]]
    single.submit(ops.commit("app", ["x"]))
    assert waiting(single) == 3
    single.close()


def test_requests_leave_no_room_for_large_releases_though_none_waits_at_the_moment(single: Single) -> None:
    """They come while a release is under way, and none is left when the next one is composed."""
    count = 2 * releases.RELEASED_BESIDE
    single.submit(scheduled([-50] * count, ["later"] * count))
    pass_ms(single, 48)
    single.submit(message("t", 0, [b"plain"]))
    while not single.texts()[1:]:
        single.send()
    assert len(single.texts()) == 1 + releases.RELEASED_BESIDE
    pass_ms(single, 3)
    assert len(single.texts()) <= 1 + releases.RELEASED_BESIDE + 3 * releases.PER_MS
    pass_ms(single, 200)
    assert len(single.texts()) == 1 + count
