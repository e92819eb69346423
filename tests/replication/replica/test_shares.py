"""Share groups at one replica: acknowledgements, failures that come back or become dead letters, replies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.codec import decode_command, decode_rows, encode_row
from escrowmq.replication.format.forwarded import REPLY_TO, history
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.share_ops import REJECT
from escrowmq.replication.model import ResultCode
from escrowmq.replication.replica.copies import JITTER
from escrowmq.replication.replica.entry_writing import COPY_BYTES_MAX
from escrowmq.replication.replica.replica import Limits
from escrowmq.replication.state import shares
from tests.support.shared_single import DEAD, MEMBER, OTHER, REPLIES, RETRY, Shared


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Shared]:
    running = Shared(tmp_path)
    yield running
    running.close()


def test_acknowledgements_go_into_the_log_as_they_came(single: Shared) -> None:
    single.begin(*"abcdef")
    frame = single.acks(0, 1, 4, 4)
    assert single.submit(frame) == [[0]] and single.done() == [2, 4, 4]
    assert frame in single.journal.read(single.journal.last_index)
    assert single.submit(frame) == [[0]] and single.done() == [2, 4, 4]
    assert single.submit(single.acks(5, 6)) == [[ResultCode.OUT_OF_RANGE, [0, 6]]]


def test_what_failed_comes_back_as_the_next_attempt(single: Shared) -> None:
    single.begin("a", "b", "c")
    before, stored_ms = single.journal.last_index, single.now_ms
    assert single.nack(1) == [0]
    failed_ms = single.now_ms
    _, found = decode_command(single.journal.read(single.journal.last_index))
    assert single.journal.last_index == before + 1, "copy and end of the original are one entry"
    assert [op.type for op in found] == [OpType.FORWARD, OpType.SHARE_ACK]
    assert single.done() == [0, 1, 1] and single.rows(RETRY) == []
    single.pass_ms(9)
    assert single.rows(RETRY) == [], "not before its time"
    single.pass_ms(2)
    ((value, headers),) = single.rows(RETRY)
    assert value == "b" and headers == {
        "escrowmq-origin": f"t/0/1/{stored_ms}",
        "escrowmq-group": "g",
        "escrowmq-attempt": "2",
        "escrowmq-first-failed": str(failed_ms),
        "escrowmq-reason": "no",
        "escrowmq-by": "me",
    }
    assert single.nack(0, topic=RETRY, reason="again") == [0]
    single.pass_ms(int(20 * (1 + JITTER)) + 1)
    again = single.headers(RETRY)[1]
    assert again == headers | {"escrowmq-attempt": "3", "escrowmq-reason": "again"}
    assert single.done(RETRY) == [1]


def test_after_the_last_attempt_it_is_a_dead_letter(single: Shared) -> None:
    single.begin("a", "b", delays_ms=[0], max_attempts=3)
    single.nack(0)
    single.nack(0, topic=RETRY)
    assert [h["escrowmq-attempt"] for h in single.headers(RETRY)] == ["2", "3"] and not single.rows(DEAD)
    single.nack(1, topic=RETRY, reason="for good")
    ((value, headers),) = single.rows(DEAD)
    assert value == "a" and len(single.rows(RETRY)) == 2
    assert (headers["escrowmq-attempt"], headers["escrowmq-reason"]) == ("3", "for good")
    assert single.replica.admission.shares.counts["dead"] == 1


def test_a_message_is_one_dead_letter_however_often_it_dies(single: Shared) -> None:
    single.begin("a", "b")
    dies = single.nacks(0, delay_ms=REJECT, stream=True)  # an attempt of a stream ends nothing by itself
    single.send(dies, dies)
    assert [value for value, _ in single.rows(DEAD)] == ["a"], "once, while the first one is under way"
    assert single.submit(dies) == [[0]] and len(single.rows(DEAD)) == 1
    single.replica.admission.forget_decisions()  # a later leader reads what is there
    single.submit(dies, single.nacks(1, delay_ms=REJECT, stream=True))
    assert [value for value, _ in single.rows(DEAD)] == ["a", "b"]
    assert single.replica.admission.shares.counts["dead"] == 2


def test_what_was_redriven_dropped_or_trimmed_may_die_again(single: Shared) -> None:
    single.begin("a")
    single.submit(share_ops.share_create("g", DEAD, 0, share_ops.EARLIEST, single.id_of(DEAD)))
    dies = single.nacks(0, delay_ms=REJECT, stream=True)
    for letters, goes in enumerate((
        lambda: single.nacks(0, topic=DEAD),
        lambda: single.acks(1, 1, topic=DEAD),
        lambda: ops.trim(DEAD, {0: 3}, single.id_of(DEAD)),
    )):  # fmt: skip
        assert single.submit(dies, dies) == [[0], [0]]
        dead = single.state.topics.topics[DEAD].partitions[0].index
        assert dead.end == letters + 1
        assert single.submit(goes())[0][0] == 0
    assert single.submit(dies) == [[0]] and dead.end == 4


def test_rejected_messages_do_not_come_back(single: Shared) -> None:
    single.begin("a", "b")
    assert single.nack(0, 1, delay_ms=REJECT) == [0]
    assert [value for value, _ in single.rows(DEAD)] == ["a", "b"]
    assert single.done() == [2] and single.state.timers.counts.total == 0


def test_dead_letters_may_be_dropped(single: Shared) -> None:
    single.begin("a", dead_letters="drop")
    assert single.nack(0, delay_ms=REJECT) == [0]
    assert single.done() == [1] and not single.rows(DEAD)
    assert single.replica.admission.shares.counts["dropped"] == 1


def test_age_counts_from_the_first_failure(single: Shared) -> None:
    single.begin("a", delays_ms=[5], max_age_ms=20)
    single.pass_ms(100)
    single.nack(0)
    for attempt in range(3):
        single.pass_ms(7)
        single.nack(attempt, topic=RETRY)
    assert len(single.rows(RETRY)) == 3 and len(single.rows(DEAD)) == 1


def test_settings_count_from_the_next_failure_on(single: Shared) -> None:
    single.begin("a", delays_ms=[5])
    single.nack(0)
    single.configure(max_attempts=1, delays_ms=[1_000])
    single.pass_ms(7)
    assert len(single.rows(RETRY)) == 1, "what waits keeps its time"
    single.nack(0, topic=RETRY)
    assert len(single.rows(DEAD)) == 1


def test_a_delay_of_the_caller_counts_and_may_be_none(single: Shared) -> None:
    single.begin("a", "b")
    single.nack(0, delay_ms=0)
    assert [value for value, _ in single.rows(RETRY)] == ["a"]
    at_ms = single.now_ms + 1 + 70
    single.nack(1, delay_ms=70)
    (record,) = single.state.timers.store.listed(b"\0" * 24, 1 << 60, 1 << 40)[0]
    assert int.from_bytes(record[:8], "big") == at_ms, "without jitter"


def test_a_senders_reserved_headers_mean_nothing(single: Shared) -> None:
    single.begin(max_attempts=3)
    forged = {
        "escrowmq-attempt": b"3",
        "escrowmq-origin": b"x/1/2/3",
        "escrowmq-undecodable": b"",
        "mine": b"1",
    }
    single.put("a", headers=forged)
    single.nack(0, delay_ms=0)
    (headers,) = single.headers(RETRY)
    assert headers["escrowmq-attempt"] == "2" and headers["escrowmq-origin"].startswith("t/0/0/")
    assert headers["mine"] == "1" and "escrowmq-undecodable" not in headers


def test_repeated_and_late_requests_copy_nothing_again(single: Shared) -> None:
    single.begin("a", "b", "c")
    single.nack(0, delay_ms=0)
    assert single.nack(0, delay_ms=0) == [0]
    single.submit(single.acks(1, 1))
    assert single.nack(1, delay_ms=0) == [0], "an acknowledged message has not failed"
    assert single.submit(single.acks(0, 0)) == [[0]]
    assert len(single.rows(RETRY)) == 1


def test_what_is_under_way_is_not_decided_twice(single: Shared) -> None:
    single.begin("a", "b", "c", "d")
    single.node.held = []
    answers = [
        single.send(request)
        for request in (
            single.nacks(0, delay_ms=0),
            single.acks(1, 2),
            single.nacks(0, 1, 2, 3, delay_ms=0),
            single.acks(3, 3),
        )
    ]
    single.node.release()
    assert answers == [[("ok", [[0]])]] * 4
    assert [value for value, _ in single.rows(RETRY)] == ["a", "d"] and single.done() == [4]
    assert not single.replica.admission.shares.under_way


def test_what_a_lost_leadership_leaves_open_can_be_decided_anew(single: Shared) -> None:
    single.begin("a")
    single.node.held = []
    (answer,) = [single.send(single.nacks(0, delay_ms=0))]
    ((_, done),) = single.node.held
    done(None, False)
    assert answer == [("not_leader", 0, 1)] or answer[0][0] == "not_leader"
    single.node.held = None
    assert single.nack(0, delay_ms=0) == [0] and len(single.rows(RETRY)) == 1
    single.fail_over()
    assert single.nack(0, delay_ms=0) == [0] and len(single.rows(RETRY)) == 1


class Leases:
    """Remembers what it is told. ``theirs``: offsets that another member holds."""

    def __init__(self, *theirs: int) -> None:
        self.theirs, self.told = theirs, list[tuple[object, ...]]()

    def others(self, pair: object, member: str, first: int, last: int) -> list[int]:
        return [n for n in self.theirs if first <= n <= last and member != OTHER]

    def settling(self, pair: object, final: object, first: int, last: int) -> None:
        self.told.append(("settling", first, last))

    def settled(self, pair: object, first: int, last: int) -> None:
        self.told.append(("settled", first, last))

    def unsettled(self, pair: object, first: int, last: int) -> None:
        self.told.append(("unsettled", first, last))


def test_who_has_lost_the_lease_cannot_kill_what_another_handles(single: Shared) -> None:
    single.begin("a", "b", "c")
    leases = single.replica.admission.shares.leases = Leases(1)
    assert single.nack(0, 1, 2, delay_ms=REJECT) == [1, [[1, ResultCode.LEASE_LOST, None]]]
    assert single.done() == [1, 2, 2] and len(single.rows(DEAD)) == 2
    assert leases.told == [("settling", 0, 0), ("settling", 2, 2), ("settled", 0, 0), ("settled", 2, 2)]
    assert single.submit(single.acks(1, 1)) == [[0]], "final is final, whoever says it"
    assert single.nack(1, delay_ms=REJECT, member=OTHER) == [0]


def test_leases_hear_of_what_came_of_it(single: Shared) -> None:
    single.begin("a", "b", "c")
    leases = single.replica.admission.shares.leases = Leases()
    single.submit(single.acks(0, 0, 2, 5))
    assert leases.told[2:] == [("unsettled", 0, 0), ("unsettled", 2, 5)], "it was refused"
    single.node.held = []
    single.send(single.acks(0, 1))
    ((_, done),) = single.node.held
    leases.told.clear()
    done(None, False)
    assert leases.told == [("unsettled", 0, 1)]


def test_a_group_without_its_topics_loses_nothing(single: Shared) -> None:
    single.begin("a", "b")
    single.submit(ops.delete_topic(RETRY, single.id_of(RETRY)))
    missing = [1, [[0, ResultCode.UNKNOWN_TOPIC, [RETRY]]]]
    assert single.nack(0) == missing and single.done() == [0]
    assert single.nack(1, delay_ms=REJECT) == [0], "the other topic is there"
    single.submit(ops.create_topic(RETRY, {"partitions": 1}, 0, 0))
    assert single.nack(0, delay_ms=0) == [0] and len(single.rows(RETRY)) == 1


def test_nothing_goes_into_a_topic_whose_deletion_is_under_way(single: Shared) -> None:
    single.begin("a")
    single.node.held = []
    single.send(ops.delete_topic(DEAD, single.id_of(DEAD)))
    answers = single.send(single.nacks(0, delay_ms=REJECT))
    single.send(ops.delete_topic("t", single.id_of("t")))
    late = single.send(single.nacks(0), single.acks(0, 0))
    single.node.release()
    assert answers == [("ok", [[1, [[0, ResultCode.UNKNOWN_TOPIC, [DEAD]]]]])]
    assert late == [("ok", [[ResultCode.UNKNOWN_TOPIC]])] * 2


@pytest.mark.parametrize("body", [b"\xc1\xc1\xc1", b"\x94\x01\x02\x03\x04" * 3])
def test_rows_that_are_none_are_wrapped(single: Shared, body: bytes) -> None:
    single.begin()
    single.submit(ops.message("t", 0, "p", 0, -1, [body], count=3))
    assert single.nack(1, delay_ms=0) == [0]
    ((_, _, _, _, _, _, blob),) = single.replica.fetch([(RETRY, 0, 0)], 1 << 20)
    ((key, value, headers, tx_id),) = decode_rows(blob, 1)
    whole = body if body[0] == 0xC1 else body[:5]
    assert (key, value, tx_id) == (None, whole, None) and headers is not None
    assert headers["escrowmq-undecodable"] == b"1" and history(headers).attempt == 2
    assert single.nack(0, topic=RETRY, delay_ms=REJECT) == [0]
    ((_, _, _, _, _, _, blob),) = single.replica.fetch([(DEAD, 0, 0)], 1 << 20)
    assert decode_rows(blob, 1)[0][1] == whole


def test_a_stream_copies_and_leaves_the_original(single: Shared) -> None:
    single.begin("a", "b")
    single.submit(ops.trim("t", {0: 1}))
    group = share_ops.nack(
        "s", "t", 0, [0, 1, 2], [0] * 3, ["no"] * 3, "", "me", single.id_of("t"), stream=True
    )
    single.submit(ops.create_topic("__retry.s", {"partitions": 1}, 0, 0))
    gone = [[at, ResultCode.OUT_OF_RANGE, [1, 2]] for at in (0, 2)]
    assert single.submit(group) == [[1, gone]]
    assert [value for value, _ in single.rows("__retry.s")] == ["b"]
    assert ("s", 1) not in single.state.shares.pairs and single.done() == [1]


def test_a_dead_letter_is_redriven_once(single: Shared) -> None:
    single.begin("a", "b", max_attempts=2)
    single.nack(0, 1, delay_ms=REJECT)
    final = [1, [[0, ResultCode.DUPLICATE, None]]]
    for answer in ([0], final):  # not done by this request: its sender counts, and names, what it did itself
        assert single.nack(0, topic=DEAD, member="", reason="") == answer
    ((value, headers),) = single.rows(RETRY)
    assert value == "a" and headers["escrowmq-origin"].startswith("t/0/0/")
    assert headers["escrowmq-attempt"] == "1" and "escrowmq-first-failed" not in headers
    assert single.done(DEAD) == [1]
    assert single.submit(single.acks(1, 1, topic=DEAD)) == [[0]]
    assert single.nack(1, topic=DEAD) == final and len(single.rows(RETRY)) == 1, "it was dropped"
    single.nack(0, topic=RETRY, delay_ms=0)
    assert single.headers(RETRY)[1]["escrowmq-attempt"] == "2", "it has all its attempts again"
    unknown = [1, [[0, ResultCode.OUT_OF_RANGE, [0, 2]]]]
    assert single.nack(7, topic=DEAD) == unknown


def reply(single: Shared, offsets: list[int], topic: str = "t", app: str = "shop") -> list[Any]:
    rows = [encode_row(None, f"r{n}".encode(), {"escrowmq-by": b"x", "h": b"1"}, None) for n in offsets]
    frame = share_ops.share_reply("g", topic, 0, app, offsets, rows, single.id_of(topic))
    (result,) = single.submit(frame)
    return result  # type: ignore[no-any-return]


def test_replies_are_written_once_with_what_becomes_final(single: Shared) -> None:
    single.begin("a", "b", "c")
    stored_ms = single.now_ms
    single.submit(single.acks(1, 1))
    before = single.journal.last_index
    assert reply(single, [0, 1, 2]) == [0] and single.journal.last_index == before + 1
    assert reply(single, [0, 2]) == [0]
    expected = {"escrowmq-group": "g", "escrowmq-attempt": "1", "escrowmq-outcome": "done", "h": "1"}
    assert single.rows(REPLIES) == [
        ("r0", expected | {"escrowmq-origin": f"t/0/0/{stored_ms}"}),
        ("r2", expected | {"escrowmq-origin": f"t/0/2/{stored_ms}"}),
    ]
    assert single.done() == [3]
    assert reply(single, [5]) == [ResultCode.OUT_OF_RANGE, [0, 3]]


def test_a_reply_about_a_retry_names_the_original(single: Shared) -> None:
    single.begin("a", "b")
    single.nack(1, delay_ms=0)
    assert reply(single, [0], RETRY) == [0]
    ((_, headers),) = single.rows(REPLIES)
    assert headers["escrowmq-origin"].startswith("t/0/1/") and headers["escrowmq-attempt"] == "2"


def test_a_reply_to_a_missing_topic_does_nothing(single: Shared) -> None:
    single.begin("a")
    assert reply(single, [0], app="other") == [ResultCode.UNKNOWN_TOPIC, ["__replies.other"]]
    assert single.done() == [0]


def test_a_dead_letters_sender_hears_of_it_in_the_same_entry(single: Shared) -> None:
    single.begin()
    single.put("a", headers={REPLY_TO: b"shop"})
    single.put("b", headers={REPLY_TO: b"nobody"})
    single.put("c", headers={REPLY_TO: b"\xff/"})
    before = single.journal.last_index
    assert single.nack(0, 1, 2, delay_ms=REJECT, reason="x" * 5_000) == [0]
    assert single.journal.last_index == before + 1
    ((value, headers),) = single.rows(REPLIES)
    assert value == "" and headers["escrowmq-outcome"] == "failed" and headers["escrowmq-group"] == "g"
    assert headers["escrowmq-reason"] == "x" * 1_024, "a long reason is cut"
    assert len(single.rows(DEAD)) == 3 and single.replica.admission.shares.counts["unheard"] == 1


def test_an_entry_holds_no_more_copies_than_it_may(single: Shared) -> None:
    single.begin(*(letter * (COPY_BYTES_MAX * 2 // 5) for letter in "abcd"), "e" * COPY_BYTES_MAX)
    again = [[i, ResultCode.RETRY, None] for i in (2, 3)]
    assert single.nack(0, 1, 2, 3, delay_ms=0) == [1, again]
    assert len(single.rows(RETRY)) == 2 and single.done() == [2]
    assert single.nack(4, delay_ms=0) == [0], "one always fits"


def test_what_cannot_wait_is_refused_and_stays(tmp_path: Path) -> None:
    single = Shared(tmp_path, limits=Limits(timers_max=1))
    single.begin("a", "b")
    full = [1, [[0, ResultCode.TOO_MANY_SCHEDULED, 1]]]
    assert single.nack(0) == [0] and single.nack(1) == full and single.done() == [1]
    assert single.nack(1, delay_ms=REJECT) == [0]
    single.close()


def test_bounds_hold_what_was_never_handed_out(single: Shared) -> None:
    single.begin(*"abcdefgh")
    kept, partition = single.state.shares, single.state.topics.topics["t"].partitions[0]
    most = [n for at in range(1, 2 * shares.RANGES_OF_PAIR_LAST, 2) for n in (at, at)]
    kept.restore("g", partition, 0, 0, most[:-2])
    assert single.submit(single.acks(1, 1, 3, 3)) == [[0]]
    kept.restore("g", partition, 0, 0, most)
    assert single.submit(single.acks(5, 5)) == [[ResultCode.TOO_MANY_SHARES, shares.RANGES_OF_PAIR_LAST]]
    kept.pairs.update({(f"h{n}", 1): kept.pairs["g", partition.slot] for n in range(shares.PAIRS_MAX)})
    other = share_ops.share_create("h", "t", 0, "latest", single.id_of("t"))
    assert single.submit(other) == [[ResultCode.TOO_MANY_SHARES, shares.PAIRS_MAX]]
    same = share_ops.share_create("g", "t", 0, "latest", single.id_of("t"))
    assert single.submit(same) == [[ResultCode.DUPLICATE, 0]]
    kept.groups.update({f"h{n}": kept.groups["g"] for n in range(shares.GROUPS_MAX)})
    assert single.submit(share_ops.group_settings("h", {"max_attempts": 2})) == [
        [ResultCode.TOO_MANY_SHARES, shares.GROUPS_MAX]
    ]
    assert shares.RANGES_OF_PAIR_LAST > shares.RANGES_OF_PAIR_MAX


def test_a_foreign_group_and_another_topic_are_refused(single: Shared) -> None:
    single.begin("a")
    foreign = share_ops.nack("h", "t", 0, [0], [0], [""], MEMBER, "me", single.id_of("t"))
    assert single.submit(foreign) == [[ResultCode.UNKNOWN_SHARE]]
    other = share_ops.nack("g", "t", 0, [0], [0], [""], MEMBER, "me", 77)
    assert single.submit(other) == [[ResultCode.OTHER_TOPIC, single.id_of("t")]]


def test_a_restart_finds_all_of_it(tmp_path: Path) -> None:
    single = Shared(tmp_path, segment_bytes=4_000)
    single.begin(*"abcdefgh", delays_ms=[40])
    single.submit(single.acks(0, 1, 5, 5))
    single.nack(2, 6)
    single.nack(3, delay_ms=REJECT)
    for _ in range(60):
        single.put("x" * 500)
    assert single.checkpoints.indexes, "a snapshot was taken"
    done, retries = single.done(), single.rows(RETRY)
    single.close()
    again = Shared(tmp_path, segment_bytes=4_000)
    assert again.redone < again.journal.last_index
    assert (again.done(), again.rows(RETRY)) == (done, retries)
    assert len(again.rows(DEAD)) == 1 and again.done() == [4, 5, 6]
    assert again.nack(2, 3, 6) == [0], "they are final"
    again.pass_ms(60)
    assert [value for value, _ in again.rows(RETRY)] == ["c", "g"]
    again.close()
