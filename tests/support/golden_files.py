"""What replicas wrote once, from tests/golden, and how its checksums are put right after a damage.

A test that damages a file tries it twice: with its checksums as the damage left them, and with right ones.
"""

from __future__ import annotations

import json

from google_crc32c import extend, value

from escrowmq.replication.format.entry import HEADER, HEADER_SIZE
from escrowmq.replication.format.segment_format import FILE_HEADER_SIZE
from escrowmq.replication.log import vote
from tests.support.golden_storage import FOLDER, from_hex

FILES = {path.name.removesuffix(".hex"): from_hex(path.read_text()) for path in FOLDER.glob("*.hex")}
OPERATIONS = json.loads((FOLDER.parent / "operations.json").read_text())
SNAPSHOT, RUNS = bytes.fromhex(OPERATIONS["snapshot"]), bytes.fromhex(OPERATIONS["run file"])
#: Something of everything that a snapshot holds.
WHOLE_SNAPSHOT = bytes.fromhex(OPERATIONS["snapshot with everything"])
TIMERS = from_hex((FOLDER.parent / "timers.hex").read_text())
SEALED, SIDECAR, NEWEST = "0000000000000001.log", "0000000000000001.pos", "0000000000000005.log"


def mend_segment(data: bytes) -> bytes:
    raw = bytearray(data)
    if len(raw) >= FILE_HEADER_SIZE:
        raw[28:32] = value(bytes(raw[:28])).to_bytes(4, "little")
    at = FILE_HEADER_SIZE
    while at + HEADER_SIZE <= len(raw):
        size = HEADER.unpack_from(raw, at)[4]
        body = bytes(raw[at + HEADER_SIZE : at + HEADER_SIZE + size])
        covered = bytes(raw[at : at + 12]) + bytes(raw[at + 16 : at + HEADER_SIZE])
        raw[at + 12 : at + 16] = extend(value(covered), body).to_bytes(4, "little")
        at += HEADER_SIZE + size
    return bytes(raw)


def mend_sidecar(data: bytes) -> bytes:
    head = 28
    return data[: head - 4] + value(data[: head - 4] + data[head:]).to_bytes(4, "little") + data[head:]


def mend_vote(data: bytes) -> bytes:
    raw = bytearray(data)
    for at in vote.SLOT_POSITIONS:
        end = at + vote.SLOT.size
        if len(raw) >= end:
            raw[end - 4 : end] = value(bytes(raw[at : end - 4])).to_bytes(4, "little")
    return bytes(raw)


def mend_snapshot(data: bytes) -> bytes:
    raw, at = bytearray(data), 8
    while at + 8 <= len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        raw[at + 4 : at + 8] = value(bytes(raw[at + 8 : at + 8 + size])).to_bytes(4, "little")
        at += 8 + size
    return bytes(raw)


def mend_runs(data: bytes) -> bytes:
    return data[:8] + value(data[16:]).to_bytes(4, "little") + data[12:]


def mend_timers(data: bytes) -> bytes:
    """Of a file of one block: where a larger one has its checksums depends on what may be damaged."""
    raw, foot, end = bytearray(data), 36, 36
    if len(raw) >= 8 + foot + end:
        at = len(raw) - foot - end
        raw[at + 24 : at + 28] = value(bytes(raw[8:at])).to_bytes(4, "little")
        raw[-4:] = value(bytes(raw[at:-4])).to_bytes(4, "little")
    return bytes(raw)
