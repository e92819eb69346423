"""Golden bytes of operations, commands, snapshots and run files: any change of the format shows here.

``python -m tests.replication.format.test_operation_format`` rewrites tests/golden/operations.json. Do that
only together with a new FORMAT_VERSION and a line in docs/log-format-operations.md.
"""

from __future__ import annotations

import contextlib
import json
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format import ops, share_ops, timer_ops
from escrowmq.replication.format.codec import (
    META_TYPES,
    META_TYPES_2,
    META_TYPES_3,
    OpType,
    PrepareExtra,
    decode_command,
    decode_ops,
    decode_rows,
    encode_command,
    encode_op,
    encode_row,
)
from escrowmq.replication.format.ops import cut
from escrowmq.replication.state.snapshot import capture, encode
from escrowmq.replication.state.stored_runs import encode_runs
from escrowmq.replication.timers.record import KEY, RECORD
from tests.support.fed_state import (
    busy_state,
    busy_state_of_level_2,
    busy_state_of_level_3,
    state_with_a_first_group,
    state_with_a_numbered_alteration,
    state_with_claims,
    state_with_fences,
    state_with_held_places,
    state_with_ids,
    state_with_letters,
    state_with_lives,
    state_with_overtaken,
    state_with_shares,
    state_with_timers,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "operations.json"
WHOLE = PrepareExtra("producer-1", [1, 2], 3, [17], True, 1_700_000_000_123)
DAMAGED = [
    "MESSAGE",
    "MESSAGE version 2",
    "PREPARE",
    "PREPARE version 2",
    "PRE_MESSAGE",
    "ROLLBACK version 2",
    "COMMIT version 2",
    "ROLLBACK version 3",
    "ALTER_TOPIC",
    "ALTER_TOPIC version 2",
    "CREATE_TOPIC version 2",
    "MESSAGE version 3",
    "PRE_MESSAGE version 2",
    "CREATE_TOPIC version 3",
    "DELETE_TOPIC version 2",
    "ALTER_TOPIC version 3",
    "TRIM version 2",
    "DELETE_GROUP",
    "SCHEDULED",
    "PRE_SCHEDULED",
    "TIMER",
    "RELEASE",
    "CANCEL",
    "CANCEL version 2",
    "FORWARD",
    "SHARE_ACK",
    "SHARE_ACK version 2",
    "NACK",
    "GROUP_SETTINGS",
    "PLACES",
    "CARRY",
    "CLAIM",
    "PREPARE version 2 with a claim",
    "PRE_OFFSETS",
    "PREPARE version 2 without a local transaction",
    "CANCEL version 3",
    "GROUP_SETTINGS version 2",
    "DELETE_GROUP version 2",
    "PRE_LETTERS",
]
ROWS = [encode_row(b"k", b"v", {"h": b"1"}, None), encode_row(None, b"", None, "tx")]


def samples() -> dict[str, str]:
    """Every kind of bytes that this package writes, by name."""
    frames = {
        "row with everything": ROWS[0],
        "row with nothing": encode_row(None, b"", None, None),
        "MESSAGE": ops.message("orders", 3, "producer-1", 2, 7, ROWS),
        "MESSAGE version 2": ops.message("orders", 3, "producer-1", 2, 7, ROWS, 1_700_000_000_123),
        "PREPARE": ops.prepare("shop", "orders", ["a", "b"], ["1", "2"], 6000, 0, [1, 2], -1, 1),
        "PREPARE without query ids": ops.prepare("shop", "orders", ["a"], None, 0, 1, [9], 2, 0),
        "PRE_MESSAGE": ops.pre_message("orders", 1, [0, 1], [len(r) for r in ROWS], ROWS),
        "REF_MESSAGE": ops.reference("orders", 1, [5, 16, 300, 2, 6, 40, 1, 1]),
        "TX_MESSAGE": ops.copied("orders", 1, 2, b"".join(ROWS)),
        "COMMIT": ops.decided_commit("shop", ["a", "b"], "feedback", 2),
        "ROLLBACK": ops.rollback("shop", ["a"], "operator:eve"),
        "CREATE_TOPIC": ops.create_topic("orders", {"partitions": 4, "on_check_exhausted": "hold"}),
        "DELETE_TOPIC": ops.delete_topic("orders"),
        "GROUP_OFFSETS": ops.group_offsets("billing", "orders", {0: 17, 3: 4}),
        "CHECKED": ops.checked("shop", ["a"]),
        "RETAIN": ops.retain(99),
        "TRIM": ops.trim("orders", {0: 12}),
        "TX_DONE": ops.done("shop", ["a", "b"], [17, 18], 2),
        "INQUIRE": ops.inquire("shop", ["a", "b"], [17, 18]),
        "LEVEL": ops.level(2),
        "SETTINGS": ops.settings({"settled_generation": 100}),
        "PREPARE version 2": ops.prepare("shop", "orders", ["a"], None, 0, 0, [1], -1, 0, WHOLE),
        "PREPARE version 2 with defaults": ops.prepare(
            "shop", "orders", ["a"], None, 0, 0, [1], -1, 0, PrepareExtra()
        ),
        "ROLLBACK version 2": ops.rollback_under("shop", ["a", "b"], "feedback", [17, 18]),
        "COMMIT version 2": ops.commit_branches("shop", ["a", "b"], "home:1", [17, 18]),
        "CHECKED version 2": ops.park("shop", ["a"], "NotFullyPrepared: it is not prepared in group 2"),
        "ROLLBACK version 3": ops.rollback_branches("shop", ["a"], "home:1", [17]),
        "ALTER_TOPIC": ops.alter_topic("orders", {"retention_ms": 3_600_000, "on_check_exhausted": "hold"}),
    }
    frames["ALTER_TOPIC version 2"] = ops.alter_topic("orders", {"check_max": 3}, 1_000)
    frames["CREATE_TOPIC version 2"] = ops.create_topic("orders", {"partitions": 4}, 7)
    frames["MESSAGE version 3"] = ops.message("orders", 3, "producer-1", 2, 0, ROWS, 1_700_000_000_123, 9)
    sizes = [len(row) for row in ROWS]
    frames["PRE_MESSAGE version 2"] = ops.pre_message("orders", 1, [0, 1], sizes, ROWS, 9)
    frames["CREATE_TOPIC version 3"] = ops.create_topic("orders", {"partitions": 4}, None, 9)
    frames["DELETE_TOPIC version 2"] = ops.delete_topic("orders", 9)
    frames["ALTER_TOPIC version 3"] = ops.alter_topic("orders", {"check_max": 3}, 1_000, 9)
    frames["TRIM version 2"] = ops.trim("orders", {0: 12}, 9)
    frames["DELETE_GROUP"] = ops.delete_group("billing", 3 << 32 | 1)
    frames |= timers() | shares() | claims() | offsets() | fences()
    frames["CUT"] = cut(["orders", "invoices"], 250)
    frames["command"] = encode_command([frames["MESSAGE"], frames["COMMIT"]], 2, 1_700_000_000_123)
    frames["snapshot"] = b"".join(encode(capture(busy_state().state, 3, ["a.runs"])))
    frames["snapshot version 2"] = b"".join(encode(capture(busy_state_of_level_2().state, 3, ["a.runs"])))
    frames["snapshot of level 3"] = b"".join(encode(capture(busy_state_of_level_3().state, 3, ["a.runs"])))
    numbered = state_with_a_numbered_alteration()
    frames["snapshot with a numbered alteration"] = b"".join(encode(capture(numbered.state, 3, ["a.runs"])))
    placed = b"".join(encode(capture(state_with_a_first_group().state, 3, ["a.runs"])))
    frames["snapshot with a first group"] = placed
    frames["snapshot of level 5"] = b"".join(encode(capture(state_with_lives().state, 3, ["a.runs"])))
    frames["snapshot of level 6"] = b"".join(encode(capture(state_with_ids().state, 3, ["a.runs"])))
    frames["snapshot of level 8"] = b"".join(encode(capture(state_with_timers().state, 3, ["a.runs"])))
    frames["snapshot of level 9"] = b"".join(encode(capture(state_with_shares().state, 3, ["a.runs"])))
    frames["snapshot with claims"] = b"".join(encode(capture(state_with_claims().state, 3, ["a.runs"])))
    taken = capture(state_with_held_places().state, 3, ["a.runs"])
    frames["snapshot with held places"] = b"".join(encode(taken))
    taken = capture(state_with_overtaken().state, 3, ["a.runs"])
    frames["snapshot with overtaken transactions"] = b"".join(encode(taken))
    frames["snapshot with letters"] = b"".join(encode(capture(state_with_letters().state, 3, ["a.runs"])))
    frames["snapshot of level 10"] = b"".join(encode(capture(state_with_fences().state, 3, ["a.runs"])))
    columns = tuple(array("Q", [i, i + 1]) for i in range(6))
    frames["run file"] = b"".join(encode_runs({7: columns}))
    return {name: data.hex() for name, data in frames.items()}


def timers() -> dict[str, bytes]:
    """What came with delayed messages."""
    sizes, when = [len(row) for row in ROWS], 1_700_000_000_123
    key = KEY.pack(when, 7, (1 << 64) - 1, 5)
    return {
        "SCHEDULED": timer_ops.scheduled(
            "orders", 3, "producer-1", 2, 7, [when, -60_000], ROWS, 1 << 63, 5, -1, 9
        ),
        "PRE_SCHEDULED": timer_ops.pre_scheduled("orders", 1, [0, 1], sizes, [when, -1], [0, 3], ROWS, 9),
        "TIMER": timer_ops.timer(RECORD.pack(when, 7, timer_ops.owner_of("shop", "a"), 0, 12, 90, 14)),
        "RELEASE": timer_ops.release(key, 2, [7, 3, 2, 28]),
        "CANCEL": timer_ops.cancel("orders", 3, [(when, (1 << 64) - 1, 5)], 9),
        "CANCEL version 2": timer_ops.decided_cancel(key, [1], [7, 3, 1, 14]),
        "CANCEL version 3": timer_ops.named_cancel(key, [1], [7, 3, 1, 14], [12]),
        "CARRY": timer_ops.carry(RECORD.pack(when, 7, 5, 0, 12, 90, sizes[0]), ROWS[:1]),
    }


def shares() -> dict[str, bytes]:
    """What came with share groups."""
    member = "0123456789abcdef" * 2
    return {
        "FORWARD": share_ops.forward("__retry.mail", 1, [0, 1_700_000_000_123], ROWS),
        "SHARE_ACK": share_ops.share_ack("mail", "orders", 3, [0, 4, 70_000, 70_000], 9),
        "SHARE_ACK, create": share_ops.share_create("mail", "orders", 3, share_ops.LATEST, 9),
        "SHARE_ACK version 2": share_ops.share_reply("mail", "orders", 3, "shop", [5, 9], ROWS, 9),
        "NACK": share_ops.nack("mail", "orders", 3, [5, 9], [-1, -2], ["no", ""], member, "host-1", 9),
        "NACK, stream": share_ops.nack("mail", "t", 3, [5], [60_000], ["no"], "", "host-1", 9, stream=True),
        "GROUP_SETTINGS": share_ops.group_settings(
            "mail", {"max_attempts": 3, "delays_ms": [1_000, 60_000], "dead_letters": "keep"}, 17
        ),
        "GROUP_SETTINGS version 2": share_ops.group_settings("mail", {"max_attempts": 3}, 17, "eve"),
        "DELETE_GROUP version 2": share_ops.delete_share_group("mail", "eve"),
        "PLACES": share_ops.places("billing", "orders", [0, 17, 2]),
    }


def claims() -> dict[str, bytes]:
    """What came with claims."""
    extra = PrepareExtra("producer-1", heard_ms=5, claim=("outbox.shop.0", 3, 17, bytes(range(16))))
    return {
        "CLAIM": timer_ops.claim("outbox.shop.0", 3, "producer-1"),
        "PREPARE version 2 with a claim": ops.prepare("shop", "orders", ["a"], None, 0, 0, [1], -1, 0, extra),
    }


def fences() -> dict[str, bytes]:
    """What came with level 10."""
    extra = PrepareExtra("producer-1", heard_ms=5, fence=bytes(range(16)))
    return {
        "PREPARE version 2 of a fence": ops.prepare("shop", "orders", ["a"], None, 0, 0, [1], -1, 0, extra),
        "PRE_LETTERS": share_ops.pre_letters("billing", 2, [0, 3, 7, 7], 9, "lost", "operator:kim"),
    }


def offsets() -> dict[str, bytes]:
    """What came with places in transactions."""
    extra = PrepareExtra("producer-1", heard_ms=5, on_timeout=ops.ROLLBACK)
    return {
        "PRE_OFFSETS": ops.pre_offsets("billing", "orders", {0: (-1, 12), 3: (7, 9)}, 9),
        "PREPARE version 2 without a local transaction": ops.prepare(
            "shop", "orders", ["a"], None, 0, 0, [1], -1, 0, extra
        ),
    }


@pytest.mark.parametrize("name", samples())
def test_bytes_are_those_of_the_golden_file(name: str) -> None:
    assert samples()[name] == json.loads(GOLDEN.read_text())[name]


def test_every_operation_has_a_golden_sample_and_a_typed_decoder() -> None:
    assert {kind.name for kind in OpType} <= set(samples())
    assert set(META_TYPES) == set(OpType)
    assert {f"{OpType(kind).name} version 2" for kind in META_TYPES_2} <= set(samples())
    assert {f"{OpType(kind).name} version 3" for kind in META_TYPES_3} <= set(samples())


def test_newer_versions_and_unknown_types_are_told_apart_from_damage() -> None:
    frame = bytearray(ops.retain(1))
    frame[1] = 2
    with pytest.raises(UnknownVersion, match="version 2"):
        decode_ops(bytes(frame))
    with pytest.raises(UnknownVersion, match="version 3; known: up to 2"):
        decode_ops(encode_op(OpType.PREPARE, [], version=3))
    with pytest.raises(CorruptLog, match="unknown field"):
        decode_ops(encode_op(OpType.PREPARE, ("a", "t", [], None, 0, 0, [], -1, 0, {"new": 1}), version=2))
    with pytest.raises(UnknownVersion, match="type 99"):
        decode_ops(encode_op(99, [1]))
    command = bytearray(encode_command([ops.retain(1)], 1, 0))
    command[1] = 9
    with pytest.raises(UnknownVersion, match="version 9"):
        decode_command(bytes(command))


@given(st.binary(max_size=400))
def test_garbage_is_refused_and_never_crashes_a_decoder(data: bytes) -> None:
    refusals = (CorruptLog, UnknownVersion)
    with contextlib.suppress(*refusals):
        assert all(
            op.type in META_TYPES and op.body_pos + op.body_size <= len(data) for op in decode_ops(data)
        )
    with contextlib.suppress(*refusals):
        now_ms, found = decode_command(data)
        assert 0 <= now_ms < 1 << 64 and all(op.type in META_TYPES for op in found)
    with contextlib.suppress(*refusals):
        assert [len(row) for row in decode_rows(data, 3)] == [4, 4, 4]


@given(st.data())
def test_a_damaged_request_is_refused_or_still_well_typed(data: st.DataObject) -> None:
    """Any changed valid request decodes to the declared shapes or is refused: apply can rely on this."""
    frame = bytearray(bytes.fromhex(samples()[data.draw(st.sampled_from(DAMAGED))]))
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        for op in decode_ops(bytes(frame)):
            assert op.type in META_TYPES and isinstance(op.meta, tuple)
    except (CorruptLog, UnknownVersion):
        pass


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(samples(), indent=1) + "\n")
