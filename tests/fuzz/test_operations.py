"""Requests of clients: what admission lets in can be applied, kept in a snapshot, and found again.

An exception while an entry is applied ends the process, on one replica after the other: so nothing that a
client can send may get that far.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format import codec, ops, share_ops, timer_ops
from escrowmq.replication.format.operation import OpType
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.limits import TIMEOUT_MS_MAX
from escrowmq.replication.replica.validation import parse_request
from escrowmq.replication.state import snapshot as snapshots
from escrowmq.replication.state.machine import LEVEL_MAX, StateMachine
from escrowmq.replication.state.snapshot import capture
from tests.fuzz.engine import EXAMPLES, Target, drawn, examine, fuzz
from tests.support.fed_state import timers_file, waiting
from tests.support.single import Single

GOLDEN = {
    name: bytes.fromhex(text)
    for name, text in json.loads(
        (Path(__file__).parent.parent / "golden" / "operations.json").read_text()
    ).items()
}
ROW = codec.encode_row(b"k", b"v" * 20, {"h": b"1"}, None)
CREATE = ops.create_topic("orders", {"partitions": 2})
HOME = PrepareExtra("me", [1, 2], 2, [], True, 9)
#: Of a client that has heard of everything: its PREPAREs are not refused as late copies.
HEARD = PrepareExtra("me", heard_ms=1 << 50)
BRANCH = PrepareExtra("me", home_index=[9], heard_ms=1 << 50)
UNASKED = PrepareExtra("me", heard_ms=1 << 50, on_timeout="rollback")
REQUESTS = [
    CREATE,
    ops.create_topic("more", {"partitions": 3, "check_max": 5, "on_check_exhausted": "rollback"}),
    ops.message("orders", 0, "p", 1, 0, [ROW, ROW]),
    ops.message("orders", 1, "p", 0, -1, [ROW]),
    ops.message("orders", 0, "q", 0, 0, [ROW], 5),
    ops.prepare("shop", "orders", ["a", "b"], ["q", "r"], 500, 0, [7, 8], -1, 1, HEARD)
    + ops.pre_message("orders", 1, [0, 1], [len(ROW)] * 2, [ROW, ROW]),
    ops.prepare("shop", "orders", ["c"], None, 0, 0, [9], 1, 0, BRANCH),
    ops.commit("shop", ["a", "b"]),
    ops.rollback("shop", ["c"], "operator:me"),
    ops.checked("shop", ["a", "c"]),
    ops.group_offsets("readers", "orders", {0: 3, 1: 1}),
    ops.delete_topic("more"),
    ops.prepare("shop", "orders", ["d", "e"], None, 0, 0, [7, 8], -1, 0, HOME),
    ops.prepare("shop", "orders", ["f"], None, 0, 0, [7], 3, 0, PrepareExtra("me", home_index=[17])),
    ops.rollback("shop", ["d", "e"], "feedback", newest_index=[3, 4]),
    ops.alter_topic("orders", {"retention_ms": 3, "on_check_exhausted": "rollback", "check_max": 2}, 0),
    ops.alter_topic("orders", {"retention_ms": 4}, 0),
    ops.trim("orders", {0: 1, 1: 9}),
    ops.settings({"settled_generation": 60, "remember_ids_s": 1, "remember_ids_strictly": 1}),
    timer_ops.scheduled("orders", 0, "p", 1, 1, [5, -7], [ROW, ROW], 9, 3, -1, 0),
    timer_ops.scheduled("orders", 1, "p", 0, -1, [1 << 52], [ROW], (1 << 64) - 1, 4, 5, 0),
    ops.prepare("shop", "orders", ["t", "u"], None, 0, 0, [7, 8], -1, 1, HEARD)
    + timer_ops.pre_scheduled("orders", 1, [0, 1], [len(ROW)] * 2, [-3, 1 << 40], [0, 0], [ROW, ROW], 0),
    ops.commit("shop", ["t", "u"]),
    timer_ops.cancel("orders", 1, [(1 << 52, (1 << 64) - 1, 4), (5, 9, 3)], 0),
    *(ops.create_topic(f"__{name}", {"partitions": 1}, 0) for name in ("retry.mail", "dead.mail")),
    ops.create_topic("__replies.shop", {"partitions": 1}, 0),
    share_ops.group_settings("mail", {"max_attempts": 2, "delays_ms": [0, 5], "dead_letters": "drop"}),
    share_ops.group_settings("sms", {"kind": "share", "max_age_ms": 3, "lease_ms": 5_000}, 7),
    share_ops.share_create("mail", "orders", 0, "earliest", 0),
    share_ops.share_create("sms", "orders", 1, "latest", 0),
    share_ops.share_ack("mail", "orders", 0, [0, 0, 2, 3, 6, 6], 0),
    share_ops.share_ack("mail", "__retry.mail", 0, [1, 1], 0),
    share_ops.share_reply("mail", "orders", 0, "shop", [4, 7], [ROW, ROW], 0),
    share_ops.nack("mail", "orders", 0, [5, 8, 9], [-1, -2, 7], ["no", "", "x"], "ab", "me", 0),
    share_ops.nack("mail", "__retry.mail", 0, [0, 2], [0, -1], ["no", "no"], "", "lease", 0),
    share_ops.nack("mail", "__dead.mail", 0, [0], [-1], [""], "", "operator:me", 0),
    share_ops.nack("mail", "orders", 1, [0, 1], [0, 0], ["", ""], "", "me", 0, stream=True),
    share_ops.places("billing", "orders", [0, 3, 2, 1, 4, 0]),
    ops.prepare("shop", "orders", ["v"], None, 0, 0, [7], -1, 2, UNASKED)
    + ops.pre_message("orders", 1, [0], [len(ROW)], [ROW])
    + ops.pre_offsets("readers", "orders", {0: (3, 4), 1: (1, 1)}),
    ops.prepare("shop", "orders", ["w"], None, 0, 0, [7], -1, 1, HEARD)
    + ops.pre_offsets("new", "orders", {1: (-1, 0)}),
    ops.delete_group("mail", 3),
    ops.claim("outbox.shop.0", 1, "relay-1"),
    ops.claim("outbox.shop.0", 7, "relay-2"),
    ops.cut(["orders", "more"], 250),
    ops.cut([], 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def single() -> Iterator[Single]:
    with tempfile.TemporaryDirectory() as path:
        running = Single(Path(path), segment_bytes=1 << 30)
        yield running
        running.close()


def survives(state: StateMachine) -> None:
    """A snapshot of the state can be written and read, and says the same."""
    copy = capture(state, 1, [])
    whole = b"".join(snapshots.encode(copy))
    again = StateMachine(state.gid, state.groups)
    snapshots.restore(again, "copy", whole)
    written = timers_file(state, copy)
    state.timers.store.sealed(copy.timers, written[0] if written else None)
    again.timers.store.restore(state.timers.store.files)
    assert waiting(again) == waiting(state)
    assert again.transactions.open_count() == state.transactions.open_count()
    assert again.group_offsets == state.group_offsets
    assert (again.held.by_tx, again.held.holders) == (state.held.by_tx, state.held.holders)
    assert again.transactions.unattended == state.transactions.unattended
    assert {key: pair.saved() for key, pair in again.shares.pairs.items()} == {
        key: pair.saved() for key, pair in state.shares.pairs.items()
    }
    assert (again.shares.groups, again.shares.ranges) == (state.shares.groups, state.shares.ranges)
    assert again.attempts == state.attempts
    assert (again.level, again.settings) == (LEVEL_MAX, state.settings)
    assert again.forgotten_ms == state.forgotten_ms
    assert again.producers.forgotten_ms == state.producers.forgotten_ms
    assert [t.info for t in again.topics.topics.values()] == [t.info for t in state.topics.topics.values()]
    mine, its = state.transactions.given, again.transactions.given
    assert (mine.young, mine.old, mine.opened) == (its.young, its.old, its.opened)


def served(single: Single, request: bytes) -> None:
    """Send it through admission, log, state and snapshot; every exception except a refusal is a bug."""
    ops_in = parse_request(request)
    answers: list[tuple[object, ...]] = []
    single.replica.submit(request, ops_in, answers.append)
    single.now_ms += 1
    single.replica.pump(single.now_ms)
    (answer,) = answers
    assert answer[0] == "ok", answer
    codec.pack(answer)
    assert len(answer[1]) == sum(1 for op in ops_in if not op.meta.ATTACHED)  # type: ignore[arg-type]
    survives(single.replica.state)


def test_what_clients_send_is_refused_or_done_and_kept(single: Single) -> None:
    single.submit(CREATE)
    fuzz(Target("request", lambda data: served(single, data), REQUESTS), EXAMPLES)


@pytest.mark.parametrize("timeout_ms", [TIMEOUT_MS_MAX + 1, (1 << 63) - 1, (1 << 64) - 1])
def test_a_time_out_without_end_is_refused(single: Single, timeout_ms: int) -> None:
    """Found by fuzzing: its due time fitted into no snapshot, which ended one replica after the other."""
    request = ops.prepare("shop", "orders", ["endless"], None, timeout_ms, 0, [1], -1, 0)
    examine(Target("request", lambda data: served(single, data), []), request)
    with pytest.raises(InvalidMessage, match="timeout"):
        parse_request(request)
    with pytest.raises(InvalidMessage, match="transaction_timeout_ms"):
        parse_request(ops.create_topic("t", {"transaction_timeout_ms": timeout_ms}))


def decode_command(data: bytes) -> None:
    now_ms, found = codec.decode_command(data)
    assert 0 <= now_ms < 1 << 64
    for op in found:
        assert 0 <= op.body_pos <= op.body_pos + op.body_size <= len(data)


def decode_operations(data: bytes) -> None:
    for op in codec.decode_ops(data):
        assert 0 <= op.body_pos <= op.body_pos + op.body_size <= len(data)


OPERATIONS = [data for name, data in GOLDEN.items() if name.partition(",")[0] in OpType.__members__]
TARGETS = [
    Target("command", decode_command, [GOLDEN["command"]]),
    Target("operations", decode_operations, OPERATIONS),
    Target("packed value", codec.unpack, [codec.pack([1, {"a": [None, b"x", 1.5]}, "text"])]),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_damaged_bytes_are_refused_with_an_error_of_ours(target: Target) -> None:
    fuzz(target)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@drawn(values)
def test_what_is_packed_is_unpacked(value: object) -> None:
    assert codec.unpack(codec.pack(value)) == value


names = st.text(min_size=1, max_size=30)
numbers = st.integers(0, (1 << 53) - 1)


@drawn(
    names,
    names,
    st.lists(names, min_size=1, max_size=5, unique=True),
    st.integers(0, TIMEOUT_MS_MAX),
    st.data(),
)
def test_what_is_encoded_is_decoded(
    app: str, topic: str, tx_ids: list[str], timeout_ms: int, data: st.DataObject
) -> None:
    digests = data.draw(st.lists(numbers, min_size=len(tx_ids), max_size=len(tx_ids)))
    txs = data.draw(st.lists(st.integers(0, len(tx_ids) - 1), min_size=1, max_size=4))
    rows = data.draw(st.lists(st.binary(min_size=1, max_size=30), min_size=len(txs), max_size=len(txs)))
    request = ops.prepare(app, topic, tx_ids, None, timeout_ms, 0, digests, -1, 1) + ops.pre_message(
        topic, 3, txs, [len(row) for row in rows], rows
    )
    prepare, pre = parse_request(request)
    assert prepare.meta == ops.Prepare(
        app, topic, tx_ids, None, timeout_ms, 0, digests, -1, 1, PrepareExtra()
    )
    assert pre.meta == ops.PreMessage(topic, 3, txs, [len(row) for row in rows], 0)
    assert request[pre.body_pos : pre.body_pos + pre.body_size] == b"".join(rows)
    command = codec.encode_command([request], 2, 77)
    assert [op.meta for op in codec.decode_command(command)[1]] == [prepare.meta, pre.meta]
