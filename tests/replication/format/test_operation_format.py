"""Golden bytes of operations, commands, snapshots and run files: any change of the format shows here.

``python -m tests.replication.format.test_operation_format`` rewrites tests/golden/operations.json. Do that
only together with a new version of the operation, a new format level, and a run of ``python -m
tests.support.format_page``, which writes docs/log-format-operations.md.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format import ops, share_ops, timer_ops
from escrowmq.replication.format.codec import (
    OPERATIONS,
    decode_command,
    decode_ops,
    decode_rows,
    encode_command,
    encode_row,
)
from escrowmq.replication.format.operation import FRAME, Operation, OpType, Sender, encode_msgpack
from escrowmq.replication.format.ops import PrepareExtra
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.snapshot import capture, encode
from escrowmq.replication.state.stored_runs import encode_runs
from escrowmq.replication.timers.record import KEY, RECORD
from tests.support.fed_state import busy_state, state_with_letters

GOLDEN = Path(__file__).parents[2] / "golden" / "operations.json"
WHEN = 1_700_000_000_123
ROWS = [encode_row(b"k", b"v", {"h": b"1"}, None), encode_row(None, b"", None, "tx")]
SIZES = [len(row) for row in ROWS]
#: Kinds of which there is no sample that a client could send; the rest are damaged.
KINDS = {operation.KIND: operation for operation in OPERATIONS}


def prepared(extra: PrepareExtra) -> bytes:
    return ops.prepare("shop", "orders", ["a"], None, 0, 0, [1], -1, 0, extra)


def frames() -> dict[str, bytes]:
    """Every operation, by its kind's name; further forms of one behind a comma."""
    key, highest = KEY.pack(WHEN, 7, (1 << 64) - 1, 5), (1 << 64) - 1
    member = "0123456789abcdef" * 2
    claimed = PrepareExtra("producer-1", heard_ms=5, claim=("outbox.shop.0", 3, 17, bytes(range(16))))
    return {
        "MESSAGE": ops.message("orders", 3, "producer-1", 2, 7, ROWS),
        "MESSAGE, the first of an epoch": ops.message("orders", 3, "producer-1", 2, 0, ROWS, WHEN, 9),
        "PREPARE": ops.prepare("shop", "orders", ["a", "b"], ["1", "2"], 6000, 0, [1, 2], -1, 1),
        "PREPARE, without query ids": ops.prepare("shop", "orders", ["a"], None, 0, 1, [9], 2, 0),
        "PREPARE, everything": prepared(PrepareExtra("producer-1", [1, 2], 3, [17], True, WHEN)),
        "PREPARE, under a claim": prepared(claimed),
        "PREPARE, without a local transaction": prepared(PrepareExtra("p", on_timeout=ops.ROLLBACK)),
        "PREPARE, of a fence": prepared(PrepareExtra("p", heard_ms=5, fence=bytes(range(16)))),
        "PRE_MESSAGE": ops.pre_message("orders", 1, [0, 1], SIZES, ROWS, 9),
        "REF_MESSAGE": ops.reference("orders", 1, [5, 16, 300, 2, 6, 40, 1, 1]),
        "TX_MESSAGE": ops.copied("orders", 1, 2, b"".join(ROWS)),
        "COMMIT": ops.commit("shop", ["a", "b"], "feedback"),
        "COMMIT, in the log": ops.Commit("shop", ["a", "b"], "feedback", 2, [], -1).frame(),
        "COMMIT, over several groups": ops.commit("shop", ["a", "b"], "home:1", [17, 18], 1),
        "ROLLBACK": ops.rollback("shop", ["a"], "operator:eve"),
        "ROLLBACK, of a check": ops.rollback("shop", ["a", "b"], "feedback", newest_index=[17, 18]),
        "ROLLBACK, over several groups": ops.rollback("shop", ["a"], "home:1", [17], 1),
        "SCHEDULED": timer_ops.scheduled("orders", 3, "p", 2, 7, [WHEN, -60_000], ROWS, 1 << 63, 5, -1, 9),
        "PRE_SCHEDULED": timer_ops.pre_scheduled("orders", 1, [0, 1], SIZES, [WHEN, -1], [0, 3], ROWS, 9),
        "TIMER": timer_ops.timer(RECORD.pack(WHEN, 7, timer_ops.owner_of("shop", "a"), 0, 12, 90, 14)),
        "RELEASE": timer_ops.release(key, 2, [7, 3, 2, 28]),
        "CANCEL": timer_ops.cancel("orders", 3, [(WHEN, highest, 5)], 9),
        "CANCELLED": timer_ops.cancelled(key, [1], [7, 3, 1, 14], [12]),
        "FORWARD": share_ops.forward("__retry.mail", 1, [0, WHEN], ROWS),
        "SHARE_ACK": share_ops.share_ack("mail", "orders", 3, [0, 4, 70_000, 70_000], 9),
        "SHARE_ACK, create": share_ops.share_create("mail", "orders", 3, share_ops.LATEST, 9),
        "SHARE_REPLY": share_ops.share_reply("mail", "orders", 3, "shop", [5, 9], ROWS, 9),
        "NACK": share_ops.nack("mail", "orders", 3, [5, 9], [-1, -2], ["no", ""], member, "host-1", 9),
        "NACK, stream": share_ops.nack("mail", "t", 3, [5], [60_000], ["no"], "", "host-1", 9, stream=True),
        "CREATE_TOPIC": ops.create_topic("orders", {"partitions": 4, "on_check_exhausted": "hold"}, 7, 9),
        "DELETE_TOPIC": ops.delete_topic("orders", 9),
        "GROUP_OFFSETS": ops.group_offsets("billing", "orders", {0: 17, 3: 4}),
        "CHECKED": ops.checked("shop", ["a"]),
        "CHECKED, parked": ops.checked("shop", ["a"], "NotFullyPrepared: it is not prepared in group 2"),
        "RETAIN": ops.retain(99),
        "TRIM": ops.trim("orders", {0: 12}, 9),
        "GROUP_SETTINGS": share_ops.group_settings(
            "mail", {"max_attempts": 3, "delays_ms": [1_000, 60_000], "dead_letters": "keep"}, 17, "eve"
        ),
        "CARRY": timer_ops.carry(RECORD.pack(WHEN, 7, 5, 0, 12, 90, SIZES[0]), ROWS[:1]),
        "TX_DONE": ops.done("shop", ["a", "b"], [17, 18], 2),
        "INQUIRE": ops.inquire("shop", ["a", "b"], [17, 18]),
        "PRE_OFFSETS": ops.pre_offsets("billing", "orders", {0: (-1, 12), 3: (7, 9)}, 9),
        "CUT": ops.cut(["orders", "invoices"], 250),
        "CLAIM": ops.claim("outbox.shop.0", 3, "producer-1"),
        "PLACES": share_ops.places("billing", "orders", [0, 17, 2]),
        "LEVEL": ops.level(2),
        "ALTER_TOPIC": ops.alter_topic("orders", {"check_max": 3, "on_check_exhausted": "hold"}, 1_000, 9),
        "SETTINGS": ops.settings({"settled_generation": 100}),
        "DELETE_GROUP": ops.delete_group("billing", 3 << 32 | 1, "eve"),
        "PRE_LETTERS": share_ops.pre_letters("billing", 2, [0, 3, 7, 7], 9, "lost", "operator:kim"),
    }


def samples() -> dict[str, str]:
    """Every kind of bytes that this package writes, by name."""
    found = {
        **frames(),
        "row with everything": ROWS[0],
        "row with nothing": encode_row(None, b"", None, None),
    }
    found["command"] = encode_command([found["MESSAGE"], found["COMMIT, in the log"]], 2, WHEN)
    found["snapshot"] = b"".join(encode(capture(busy_state().state, 3, ["a.runs"])))
    found["snapshot with everything"] = b"".join(encode(capture(state_with_letters().state, 3, ["a.runs"])))
    columns = tuple(array("Q", [i, i + 1]) for i in range(6))
    found["run file"] = b"".join(encode_runs({7: columns}))
    return {name: data.hex() for name, data in found.items()}


@pytest.mark.parametrize("name", samples())
def test_bytes_are_those_of_the_golden_file(name: str) -> None:
    assert samples()[name] == json.loads(GOLDEN.read_text())[name]


def test_every_operation_has_a_golden_sample_and_a_class() -> None:
    assert {kind.name for kind in OpType} <= set(samples())
    assert set(KINDS) == set(OpType)
    assert len({(one.KIND, one.VERSION) for one in OPERATIONS}) == len(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_every_operation_is_applied_or_is_a_part_of_one_that_is(operation: type[Operation]) -> None:
    """The class says who sends it; the state applies it. A new operation needs both."""
    applied = operation.KIND in StateMachine(0, 1)._handlers
    assert applied or operation.ATTACHED or operation.KIND == OpType.PREPARE
    assert not (operation.ATTACHED and operation.SENDER is not Sender.CLIENT)
    assert operation.__doc__
    checks = "problem" in vars(operation)
    assert checks or operation.SENDER is Sender.LEADER or operation.KIND == OpType.PRE_MESSAGE, (
        "what a client sends is checked"
    )


@pytest.mark.parametrize("name", frames())
def test_an_operation_reads_back_as_it_was(name: str) -> None:
    (op,) = decode_ops(frames()[name])
    assert type(op.meta) is KINDS[OpType(op.type)]
    body = frames()[name][op.body_pos : op.body_pos + op.body_size]
    assert op.meta.frame((body,)) == frames()[name]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.__name__)
def test_too_few_and_too_many_columns_are_refused(operation: type[Operation]) -> None:
    (op,) = decode_ops(frames()[operation.KIND.name])
    columns = list(msgspec.structs.astuple(op.meta))
    for wrong in (columns[:-1], [*columns, 0]):
        packed = encode_msgpack(wrong)
        frame = FRAME.pack(operation.KIND, operation.VERSION, 0, len(packed), 0) + packed
        with pytest.raises(CorruptLog, match="array"):
            decode_ops(frame)


def framed(kind: int, columns: object, version: int = 1) -> bytes:
    packed = encode_msgpack(columns)
    return FRAME.pack(kind, version, 0, len(packed), 0) + packed


def test_newer_versions_and_unknown_types_are_told_apart_from_damage() -> None:
    with pytest.raises(UnknownVersion, match="version 2; known: up to 1"):
        decode_ops(framed(OpType.RETAIN, [1], version=2))
    new = ("a", "t", [], None, 0, 0, [], -1, 0, {"new": 1})
    with pytest.raises(CorruptLog, match="unknown field"):
        decode_ops(framed(OpType.PREPARE, new))
    with pytest.raises(UnknownVersion, match="type 99"):
        decode_ops(framed(99, [1]))
    command = bytearray(encode_command([ops.retain(1)], 1, 0))
    command[1] = 9
    with pytest.raises(UnknownVersion, match="version 9"):
        decode_command(bytes(command))


@given(st.binary(max_size=400))
def test_garbage_is_refused_and_never_crashes_a_decoder(data: bytes) -> None:
    refusals = (CorruptLog, UnknownVersion)
    with contextlib.suppress(*refusals):
        assert all(op.type in KINDS and op.body_pos + op.body_size <= len(data) for op in decode_ops(data))
    with contextlib.suppress(*refusals):
        now_ms, found = decode_command(data)
        assert 0 <= now_ms < 1 << 64 and all(op.type in KINDS for op in found)
    with contextlib.suppress(*refusals):
        assert [len(row) for row in decode_rows(data, 3)] == [4, 4, 4]


@given(st.data())
def test_a_damaged_request_is_refused_or_still_well_typed(data: st.DataObject) -> None:
    """Any changed valid request decodes to the declared shapes or is refused: apply can rely on this."""
    frame = bytearray(frames()[data.draw(st.sampled_from(sorted(frames())))])
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        for op in decode_ops(bytes(frame)):
            assert type(op.meta) is KINDS[OpType(op.type)]
    except (CorruptLog, UnknownVersion):
        pass


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(samples(), indent=1) + "\n")
