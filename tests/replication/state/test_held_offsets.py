"""Offsets that a transaction moves when it is committed: compared at its PREPARE, held until it is
settled."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from escrowmq.replication.format import ops, share_ops
from escrowmq.replication.format.ops import NONE_YET, PrepareExtra, pre_offsets
from escrowmq.replication.format.settings import SHARE
from escrowmq.replication.model import ResultCode as Code
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode, restore
from tests.support.fed_state import FedState, dump

GROUP, TOPIC = "billing", "t"
OPENED = [[0]]


def prepare(
    log: FedState,
    tx_id: str,
    moves: dict[int, tuple[int, int]],
    *,
    group: str = GROUP,
    topic: str = TOPIC,
    topic_id: int = 0,
    digest: int = 1,
) -> Any:
    extra = PrepareExtra("p", heard_ms=log.now_ms + 1)
    frame = ops.prepare("app", "t", [tx_id], None, 0, 0, [digest], -1, 1, extra)
    return log.add(frame + pre_offsets(group, topic, moves, topic_id))


def commit(log: FedState, tx_id: str) -> Any:
    return log.add(ops.Commit("app", [tx_id], "producer", 0, [], -1).frame())


def rollback(log: FedState, tx_id: str) -> Any:
    return log.add(ops.rollback("app", [tx_id]))


def committed(log: FedState, partition: int = 0, group: str = GROUP) -> int:
    return log.state.group_offsets.get(group, {}).get(TOPIC, {}).get(partition, NONE_YET)


def refused(code: Code, *info: Any) -> Any:
    return [[int(Code.PARTIAL), [[0, int(code), list(info)]]]]


def restarted(log: FedState) -> FedState:
    """The same state, from its snapshot."""
    again = FedState()
    again.state = StateMachine(0, 1)
    restore(again.state, "snap", b"".join(encode(capture(log.state, 3, []))))
    again.index, again.now_ms = log.index, log.now_ms
    assert dump(again.state)["held"] == dump(log.state)["held"]
    return again


def test_a_commit_moves_the_offsets_and_a_rollback_leaves_them() -> None:
    log = FedState()
    assert prepare(log, "first", {0: (NONE_YET, 5), 1: (NONE_YET, 2)}) == OPENED
    assert committed(log) == NONE_YET, "not before the commit"
    assert commit(log, "first") == OPENED
    assert (committed(log), committed(log, 1)) == (5, 2)
    assert prepare(log, "second", {0: (5, 9)}) == OPENED
    rollback(log, "second")
    assert (committed(log), committed(log, 1)) == (5, 2)
    assert prepare(log, "third", {0: (5, 7)}) == OPENED and commit(log, "third") == OPENED
    assert committed(log) == 7 and not log.state.held.by_tx and not log.state.held.holders


def test_of_two_that_have_read_the_same_one_prepares() -> None:
    log = FedState()
    assert prepare(log, "one", {0: (NONE_YET, 5)}) == OPENED
    pending = refused(Code.OFFSETS_PENDING, GROUP, TOPIC, 0)
    assert prepare(log, "two", {0: (NONE_YET, 5)}) == pending
    assert prepare(log, "next", {0: (5, 6)}) == pending, "what it begins at may come to be"
    assert prepare(log, "other", {0: (NONE_YET, 5)}, group="other") == OPENED
    commit(log, "one")
    assert prepare(log, "two", {0: (NONE_YET, 5)}) == refused(Code.OFFSETS_MOVED, GROUP, TOPIC, 0, 5)
    assert prepare(log, "next", {0: (5, 6)}) == OPENED


def test_one_offset_that_is_elsewhere_refuses_all() -> None:
    log = FedState()
    log.add(ops.group_offsets(GROUP, TOPIC, {0: 4}))
    assert prepare(log, "x", {1: (NONE_YET, 3), 0: (3, 5)}) == refused(Code.OFFSETS_MOVED, GROUP, TOPIC, 0, 4)
    assert not log.state.held.by_tx and not log.state.transactions.open_count()


def test_sent_again_it_is_one_transaction() -> None:
    log = FedState()
    for _ in range(2):
        assert prepare(log, "x", {0: (NONE_YET, 5)}) == OPENED
    assert prepare(log, "x", {0: (NONE_YET, 6)}, digest=2)[0][0] == Code.PARTIAL, "other content"
    commit(log, "x")
    done = [[int(Code.PARTIAL), [[0, int(Code.DUPLICATE), "COMMITTED"]]]]
    assert prepare(log, "x", {0: (NONE_YET, 5)}) == done, "though the group is elsewhere by now"
    assert committed(log) == 5


def test_nothing_else_moves_a_held_offset() -> None:
    log = FedState()
    log.add(ops.group_offsets(GROUP, TOPIC, {0: 1, 1: 1}))
    prepare(log, "x", {0: (1, 5)})
    pending = [[int(Code.OFFSETS_PENDING), [GROUP, TOPIC, 0]]]
    assert log.add(ops.group_offsets(GROUP, TOPIC, {1: 3, 0: 3})) == pending
    assert log.add(share_ops.places(GROUP, TOPIC, [0, 3, 1])) == pending
    assert log.add(ops.delete_group(GROUP, 7)) == pending
    assert (committed(log), committed(log, 1), log.state.deleted_groups.last_void(GROUP)) == (1, 1, -1)
    assert log.add(ops.group_offsets(GROUP, TOPIC, {1: 3})) == OPENED, "another partition"
    rollback(log, "x")
    assert log.add(ops.group_offsets(GROUP, TOPIC, {0: 3})) == OPENED
    assert log.add(ops.delete_group(GROUP, 7)) == OPENED


def test_a_held_group_is_not_forgotten_for_another() -> None:
    log = FedState()
    log.add(ops.settings({"groups_kept": 2}))
    log.add(ops.group_offsets(GROUP, TOPIC, {0: 1}))
    prepare(log, "x", {0: (1, 5)})
    for number in range(4):
        log.add(ops.group_offsets(f"g{number}", TOPIC, {0: 1}))
    assert list(log.state.group_offsets) == [GROUP, "g3"]
    log.add(ops.settings({"groups_kept": 0}))
    assert list(restarted(log).state.group_offsets) == list(log.state.group_offsets) == [GROUP]
    commit(log, "x")
    assert GROUP not in log.state.group_offsets, "the limit counts again"


def test_a_later_topic_of_the_name_gets_no_old_offset() -> None:
    log = FedState()
    log.add(ops.create_topic("new", {"partitions": 2}, 0, 0))
    created = log.state.topics.topics["new"].info.topic_id
    assert prepare(log, "x", {0: (NONE_YET, 5)}, topic="new", topic_id=created) == OPENED
    log.add(ops.delete_topic("new", created), ops.create_topic("new", {"partitions": 2}, 0, 0))
    assert commit(log, "x") == OPENED, "its messages count"
    assert GROUP not in log.state.group_offsets and not log.state.held.holders
    again = prepare(log, "y", {0: (NONE_YET, 5)}, topic="new", topic_id=created)
    assert again == refused(Code.OFFSETS_MOVED, GROUP, "new", -1, NONE_YET)
    log.add(ops.delete_topic("new", created + 1))
    assert prepare(log, "z", {0: (NONE_YET, 5)}, topic="new", topic_id=created) == refused(
        Code.UNKNOWN_TOPIC, "new"
    )


def test_what_does_not_exist_is_refused() -> None:
    log = FedState()
    assert prepare(log, "x", {2: (NONE_YET, 5)}) == refused(Code.BAD_PARTITION, TOPIC, 2)
    log.add(share_ops.group_settings("shared", {"kind": SHARE}))
    assert prepare(log, "y", {0: (NONE_YET, 5)}, group="shared") == refused(Code.GROUP_KIND, "shared", SHARE)
    assert prepare(log, "z", {0: (NONE_YET, 5)}, group="fresh") == OPENED
    settled = log.add(share_ops.group_settings("fresh", {"kind": SHARE}))
    assert settled[0][0] == Code.GROUP_KIND, "its first offset is under way"


def test_a_restart_keeps_what_is_held_and_who_is_not_asked() -> None:
    log = FedState()
    extra = PrepareExtra("p", heard_ms=log.now_ms + 1, on_timeout="rollback")
    log.add(ops.prepare("app", "t", ["alone"], None, 0, 0, [1], -1, 0, extra))
    prepare(log, "x", {0: (NONE_YET, 5)})
    log = restarted(log)
    assert list(log.state.transactions.unattended) == [("app", "alone")]
    assert prepare(log, "y", {0: (NONE_YET, 5)}) == refused(Code.OFFSETS_PENDING, GROUP, TOPIC, 0)
    commit(log, "x")
    rollback(log, "alone")
    assert committed(log) == 5 and not log.state.transactions.unattended


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("commit"), st.integers(0, 2)),
        st.tuples(st.just("rollback"), st.integers(0, 2)),
        st.tuples(st.just("restart")),
    ),
    max_size=30,
)


#: A rollback, and another member that reads while the first one's next transaction is open.
_TAKEN_OVER: list[tuple[Any, ...]] = [("read", 0, 2), ("rollback", 0), ("read", 0, 2)]


def play(steps: list[tuple[Any, ...]]) -> None:
    """Three members of a group that all believe that they own the partition: each offset counts once."""
    log = FedState()
    work: dict[int, tuple[str, int, int]] = {}
    counted: list[int] = []
    for number, (kind, *given_) in enumerate(steps):
        if kind == "restart":
            log = restarted(log)
        elif kind == "read":
            member, count = given_
            if member in work:
                continue
            begin = committed(log)
            end = max(begin, 0) + count
            if prepare(log, str(number), {0: (begin, end)}) == OPENED:
                work[member] = str(number), max(begin, 0), end
        elif given_[0] in work:
            tx_id, begin, end = work.pop(given_[0])
            if kind == "rollback":
                rollback(log, tx_id)
            elif commit(log, tx_id) == OPENED:
                counted += range(begin, end)
    assert counted == list(range(len(counted))), "each once, and in order"
    assert committed(log) in (len(counted), NONE_YET)
    for tx_id, _, _ in work.values():
        rollback(log, tx_id)
    assert prepare(log, "last", {0: (committed(log), committed(log) + 5)}) == OPENED, "held for ever"


@settings(max_examples=150, deadline=None)
@given(_STEPS)
@example([*_TAKEN_OVER, ("restart",), ("read", 1, 2), ("commit", 0), ("commit", 1)])
def test_whoever_reads_and_whatever_fails_each_offset_counts_once(steps: list[tuple[Any, ...]]) -> None:
    play(steps)
