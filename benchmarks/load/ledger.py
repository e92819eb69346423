"""Compares what clients sent and were told with what can be read at the end. One byte per message.

A value starts with the client's number and the message's number within the client, and ends with a checksum.
So millions of messages are checked in one pass, with a few bytes of memory each.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from escrowmq.actors.client.topology import ClusterInfo
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.format.codec import decode_rows

_HEAD, _CRC = struct.Struct("<II"), struct.Struct("<I")
NOT_SENT, SENT, ACCEPTED, REFUSED, UNKNOWN = range(5)


def value_of(client: int, number: int, size: int) -> bytes:
    """A value of ``size`` bytes that contains its message's numbers and a checksum."""
    body = _HEAD.pack(client, number) + bytes(max(0, size - _HEAD.size - _CRC.size))
    return body + _CRC.pack(google_crc32c.value(body))


def name_of(value: bytes) -> tuple[int, int] | None:
    """(client, number) of a value; None for bytes that ``value_of`` did not make."""
    if len(value) < _HEAD.size + _CRC.size or _CRC.unpack(value[-4:])[0] != google_crc32c.value(value[:-4]):
        return None
    client, number = _HEAD.unpack_from(value)
    return client, number


@dataclass
class Verdict:
    """The counts of one comparison. The first five must be 0."""

    lost: int = 0
    twice: int = 0
    refused_but_there: int = 0
    corrupt: int = 0
    out_of_order: int = 0
    accepted: int = 0
    refused: int = 0
    unknown: int = 0
    unknown_but_there: int = 0
    read: int = 0
    examples: list[str] = field(default_factory=list)

    def problems(self) -> int:
        return self.lost + self.twice + self.refused_but_there + self.corrupt + self.out_of_order

    def note(self, text: str) -> None:
        if len(self.examples) < 10:
            self.examples.append(text)


def read_all(info: ClusterInfo, topic: str, bounds: Sequence[tuple[int, int]]) -> Iterable[tuple[int, bytes]]:
    """(partition, value) of all messages in the topic, in order within each partition."""
    for partition, (start, end) in enumerate(bounds):
        with PartitionReader(info, topic, partition, start, end) as reader:
            for block in reader:
                for row in decode_rows(block.rows, block.messages):
                    yield partition, row[1]


def compare(
    told: dict[int, bytes], found: Iterable[tuple[int, bytes]], *, ordered: frozenset[int] = frozenset()
) -> Verdict:
    """Compare the clients' ledgers with the messages that were read.

    ``told``: client -> one byte per message, NOT_SENT to UNKNOWN. ``found``: (partition, value). ``ordered``:
    clients whose messages must be in the order of their numbers within each partition.
    """
    verdict = Verdict()
    seen = {client: bytearray(len(states)) for client, states in told.items()}
    last: dict[tuple[int, int], int] = {}
    for partition, value in found:
        verdict.read += 1
        name = name_of(value)
        if name is None or name[0] not in seen or name[1] >= len(seen[name[0]]):
            verdict.corrupt += 1
            verdict.note(f"no client sent {value[:24]!r} in partition {partition}")
            continue
        client, number = name
        marks = seen[client]
        marks[number] = min(marks[number] + 1, 2)
        if client in ordered:
            if number < last.get((client, partition), -1):
                verdict.out_of_order += 1
                verdict.note(f"message {number} of client {client} is out of order in partition {partition}")
            last[client, partition] = number
    for client, states in told.items():
        _judge(verdict, client, states, seen[client])
    return verdict


def _judge(verdict: Verdict, client: int, states: bytes, seen: bytearray) -> None:
    for number, (state, times) in enumerate(zip(states, seen, strict=True)):
        if times > 1:
            verdict.twice += 1
            verdict.note(f"message {number} of client {client} is a duplicate")
        if state == ACCEPTED:
            verdict.accepted += 1
            if not times:
                verdict.lost += 1
                verdict.note(f"message {number} of client {client} was acknowledged but is missing")
        elif state == REFUSED:
            verdict.refused += 1
            if times:
                verdict.refused_but_there += 1
                verdict.note(f"message {number} of client {client} was refused but can be read")
        elif state in (SENT, UNKNOWN):
            verdict.unknown += 1
            verdict.unknown_but_there += times > 0


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """The verdict for the JSON file."""
    return dict(vars(verdict))
