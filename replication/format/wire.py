"""Messages between replicas as bytes: frames of a fixed shape, decoded by type, nothing unpickled.

A frame is ``u32 length of the rest | u32 header length | header | bodies``, little endian. The
header is a msgpack array that starts with the message's number; msgspec checks its types while
decoding. Only AppendEntries carries bodies: the raw commands of its entries, concatenated.
A length over ``FRAME_BYTES_MAX`` is refused before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from escrowmq.replication.errors import WireError

#: Version of the peer protocol; the handshake refuses any other.
WIRE_VERSION = 1
FRAME_BYTES_MAX = 64 << 20
#: A header holds one length per entry; a batch of 1 MiB of one-byte commands stays below this.
HEADER_BYTES_MAX = 8 << 20
PREFIX = struct.Struct("<II")

#: A Raft message as pysyncobj makes it: a plain dict with a ``type``.
RaftMessage = dict[str, Any]
#: What decoding of untrusted bytes may raise: damage, another shape, invalid UTF-8, unbounded nesting.
NOT_OURS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: As wide as the file formats' signed 64 bits: a larger one could be sent but never stored.
Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
#: A wall clock in ms; -1: its replica does not tell it.
Clock = Annotated[int, msgspec.Meta(ge=-1, le=(1 << 63) - 1)]
#: A disk id, or another short name.
Name = Annotated[str, msgspec.Meta(max_length=64)]
#: Far more than the replicas of a group.
MARKS_MAX = 64


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True): ...


class _Append(_Frame, tag=1):
    term: Index
    commit: Index
    previous: Index
    previous_term: Index
    seq: Index
    terms: list[Index] | Index  # one number if all entries have the same term
    sizes: list[Index]


class _LogStart(_Frame, tag=2):
    term: Index
    commit: Index
    seq: Index
    log_start: Index


class _Ack(_Frame, tag=12):
    term: Index
    seq: Index
    next: Index
    reset: bool
    success: bool
    counts: bool  # False: the replica lost its disk and is only a learner for now
    clock_ms: Clock


class _Ask(_Frame, tag=4):
    pre: bool
    term: Index
    last_index: Index
    last_term: Index


class _Rejoin(_Frame, tag=7):
    """``marks``: the incarnations of the answering replica's peers; a question has none."""

    answer: bool
    nonce: Index
    term: Index
    last_index: Index
    marks: Annotated[list[tuple[str, Index, Name]], msgspec.Meta(max_length=MARKS_MAX)]


class _Superseded(_Frame, tag=8):
    """The receiver was replaced."""

    number: Index
    disk_id: Name


class _Marks(_Frame, tag=9):
    """Between a leader and a learner that will become a voter: the incarnations that each knows."""

    held: bool  # False: store these; True: these are now on the learner's disk
    marks: Annotated[list[tuple[str, Index, Name]], msgspec.Meta(max_length=MARKS_MAX)]


class _Vote(_Frame, tag=11):
    """A vote, and the incarnations that the voter knows."""

    term: Index
    marks: Annotated[list[tuple[str, Index, Name]], msgspec.Meta(max_length=MARKS_MAX)]


class _Plain(_Frame, tag=5):
    kind: Index
    term: Index


#: Messages that carry nothing but a term; their number is their position here.
_PLAIN = ("pre_vote_granted", "timeout_now", "stale_term")
_PLAIN_NUMBER = {kind: number for number, kind in enumerate(_PLAIN)}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(
    _Append | _LogStart | _Ack | _Ask | _Plain | _Rejoin | _Superseded | _Marks | _Vote
).decode


def encode(message: RaftMessage) -> list[bytes]:
    """The buffers of one frame, to be written in this order."""
    kind, bodies = message["type"], []
    frame: _Frame
    if kind == "append_entries":
        term, commit, seq = message["term"], message["commit_index"], message["seq"]
        if "log_start" in message:
            frame = _LogStart(term, commit, seq, message["log_start"])
        else:
            entries = message["entries"]
            bodies = [entry[0] for entry in entries]
            terms = _one_term(entries)
            frame = _Append(
                term,
                commit,
                message["prevLogIdx"],
                message["prevLogTerm"],
                seq,
                terms,
                [len(b) for b in bodies],
            )
    elif kind == "next_node_idx":
        index, reset, success = message["next_node_idx"], message["reset"], message["success"]
        seq, counts, clock_ms = message["seq"], message["counts"], message["clock_ms"]
        frame = _Ack(message["term"], seq, index, reset, success, counts, clock_ms)
    elif kind in ("request_vote", "pre_vote"):
        index, term = message["last_log_index"], message["last_log_term"]
        frame = _Ask(kind == "pre_vote", message["term"], index, term)
    elif kind == "response_vote":
        frame = _Vote(message["term"], message["marks"])
    elif kind in ("rejoin", "rejoin_answer"):
        last, marks = message.get("last_index", 0), message.get("marks", [])
        frame = _Rejoin(kind == "rejoin_answer", message["nonce"], message["term"], last, marks)
    elif kind == "superseded":
        frame = _Superseded(message["number"], message["disk_id"])
    elif kind in ("marks", "marks_held"):
        frame = _Marks(kind == "marks_held", message["marks"])
    else:
        frame = _Plain(_PLAIN_NUMBER[kind], message["term"])
    header = _encode(frame)
    total = 4 + len(header) + sum(map(len, bodies))
    if total > FRAME_BYTES_MAX:
        raise WireError(f"a frame of {total} bytes exceeds the limit of {FRAME_BYTES_MAX}")
    return [PREFIX.pack(total, len(header)) + header, *bodies]


def _one_term(entries: Sequence[tuple[bytes, int, int]]) -> list[int] | int:
    """Log terms never fall, so the first and the last tell whether all are the same."""
    if not entries:
        return 0
    first = entries[0][2]
    return first if first == entries[-1][2] else [entry[2] for entry in entries]


def check_prefix(total: int, header: int, limit: int = FRAME_BYTES_MAX) -> None:
    """Refuse a frame because of its two lengths alone."""
    if total > limit or header + 4 > total or header > HEADER_BYTES_MAX:
        raise WireError(f"frame of {total} bytes with a header of {header}; the limit is {limit}")


def decode(header: memoryview | bytes, bodies: memoryview) -> RaftMessage:
    """The message of one frame. Raises WireError for anything that is not one of ours."""
    try:
        frame = _decode(header)
    except NOT_OURS as error:
        raise WireError(f"not a message of this protocol: {error}") from error
    if isinstance(frame, _Append):
        return _decode_append(frame, bodies)
    if len(bodies):
        raise WireError(f"{len(bodies)} bytes follow a message that has no bodies")
    if isinstance(frame, _Ack):
        return {
            "type": "next_node_idx", "term": frame.term, "seq": frame.seq, "next_node_idx": frame.next,
            "reset": frame.reset, "success": frame.success, "counts": frame.counts,
            "clock_ms": frame.clock_ms,
        }  # fmt: skip
    if isinstance(frame, _Ask):
        return {
            "type": "pre_vote" if frame.pre else "request_vote", "term": frame.term,
            "last_log_index": frame.last_index, "last_log_term": frame.last_term,
        }  # fmt: skip
    if isinstance(frame, _Vote):
        return {"type": "response_vote", "term": frame.term, "marks": frame.marks}
    if isinstance(frame, _LogStart):
        return {
            "type": "append_entries", "term": frame.term, "commit_index": frame.commit, "seq": frame.seq,
            "serialized": None, "log_start": frame.log_start,
        }  # fmt: skip
    if isinstance(frame, _Rejoin):
        return {
            "type": "rejoin_answer" if frame.answer else "rejoin", "nonce": frame.nonce, "term": frame.term,
            "last_index": frame.last_index, "marks": frame.marks,
        }  # fmt: skip
    if isinstance(frame, _Superseded):
        return {"type": "superseded", "number": frame.number, "disk_id": frame.disk_id}
    if isinstance(frame, _Marks):
        return {"type": "marks_held" if frame.held else "marks", "marks": frame.marks}
    if frame.kind >= len(_PLAIN):
        raise WireError(f"message of unknown kind {frame.kind}")
    return {"type": _PLAIN[frame.kind], "term": frame.term}


def _decode_append(frame: _Append, bodies: memoryview) -> RaftMessage:
    count, at = len(frame.sizes), 0
    terms = frame.terms if isinstance(frame.terms, list) else [frame.terms] * count
    if len(terms) != count or sum(frame.sizes) != len(bodies) or not all(frame.sizes):
        raise WireError(f"{count} entries of {sum(frame.sizes)} bytes announced, {len(bodies)} bytes follow")
    entries, index = [], frame.previous
    for size, term in zip(frame.sizes, terms, strict=True):
        index += 1
        entries.append((bytes(bodies[at : at + size]), index, term))
        at += size
    return {
        "type": "append_entries", "term": frame.term, "commit_index": frame.commit, "seq": frame.seq,
        "prevLogIdx": frame.previous, "prevLogTerm": frame.previous_term, "entries": entries,
    }  # fmt: skip
