"""A group's members as the log holds them: the whole configuration in one entry, and its bytes.

The entry's first byte is MEMBERSHIP, which pysyncobj reserves for its own pickled nodes; nothing here is
ever unpickled (``dynamicMembershipChange`` stays off). An entry holds the whole configuration and not a
difference, so that one entry is enough to know it. docs/log-format-operations.md shows the bytes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from escrowmq.replication.errors import CorruptLog, UnknownVersion
from escrowmq.replication.format.codec import MEMBERSHIP

VERSION: Final = 1
#: Seven voters survive the loss of three. More would cost an fsync and a copy each, and no user needs them.
VOTERS_MAX: Final = 7
#: Replicas that are being filled. Each costs the leader's disk and network a whole copy.
LEARNERS_MAX: Final = 2
#: Characters of the id of a change.
CHANGE_ID_MAX: Final = 200
_HEAD: Final = bytes((MEMBERSHIP, VERSION, 0, 0))
_NUMBER = re.compile(r"\d{1,9}\Z", re.ASCII)
_NOT_MSGPACK = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Members:
    """One configuration. Ids are Raft ids, in the order of their numbers.

    ``version`` grows by one with every change, and is the epoch of the list that links and clients follow.
    ``highest``: the highest number that any member ever had, so that none is reused. ``change_id``: id of the
    change that produced this configuration ("": the group's first configuration).
    """

    version: int
    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    change_id: str = ""
    highest: int = -1

    @property
    def all(self) -> tuple[str, ...]:
        return self.voters + self.learners

    def retired(self, replica: str) -> bool:
        """Whether it was a member and no longer is, or its number was skipped: it can never join again."""
        return id_number(replica) <= self.highest and replica not in self.voters + self.learners


#: What a replica knows before it belongs to a group: it waits for a leader.
NOBODY: Final = Members(0, ())


class _Wire(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    voters: Annotated[list[str], msgspec.Meta(min_length=1, max_length=VOTERS_MAX)]
    learners: Annotated[list[str], msgspec.Meta(max_length=LEARNERS_MAX)]
    change_id: Annotated[str, msgspec.Meta(max_length=CHANGE_ID_MAX)]
    highest: Annotated[int, msgspec.Meta(ge=-1, le=(1 << 31) - 1)]


_decode = msgspec.msgpack.Decoder(_Wire).decode
_encode = msgspec.msgpack.Encoder().encode


def id_number(replica: str) -> int:
    """The number in a Raft id: the whole id in a broker group, the trailing digits of a named id; -1:
    none."""
    found = _NUMBER.search(replica)
    return -1 if found is None else int(found[0])


def in_order(replicas: set[str] | frozenset[str] | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Sorted by number: ``"10"`` comes after ``"9"``."""
    return tuple(sorted(replicas, key=lambda replica: (id_number(replica), replica)))


def founding(voters: list[str] | tuple[str, ...]) -> Members:
    """The configuration at index 0 of a group whose log holds no earlier one."""
    return Members(1, in_order(voters), (), "", max(map(id_number, voters), default=-1))


def encode_members(members: Members) -> bytes:
    """The command of an entry that holds this configuration."""
    m = members
    return _HEAD + _encode(_Wire(m.version, list(m.voters), list(m.learners), m.change_id, m.highest))


def members_mark(members: Members) -> str:
    """A configuration as JSON with numbers, for people and for tools that collect a group's directories."""
    return json.dumps(
        {
            "version": members.version,
            "voters": [id_number(replica) for replica in members.voters],
            "learners": [id_number(replica) for replica in members.learners],
            "highest": members.highest,
        }
    )


def decode_members(command: bytes) -> Members:
    """The configuration in a command. Raises UnknownVersion for an entry of newer software, CorruptLog for an
    invalid one."""
    if command[:1] != _HEAD[:1] or len(command) < len(_HEAD):
        raise CorruptLog("not an entry of the group's members")
    if command[1] != VERSION:
        raise UnknownVersion(
            f"an entry of the group's members has version {command[1]}; this software reads {VERSION}: "
            "upgrade it"
        )
    try:
        wire = _decode(command[len(_HEAD) :])
        found = Members(wire.version, tuple(wire.voters), tuple(wire.learners), wire.change_id, wire.highest)
    except _NOT_MSGPACK as error:
        raise CorruptLog(f"an entry of the group's members is invalid: {error}") from error
    numbers = [number for replica in found.all if (number := id_number(replica)) >= 0]
    if len(set(found.all)) != len(found.all) or len(set(numbers)) != len(numbers):
        raise CorruptLog("an entry of the group's members names a replica twice")
    if max(numbers, default=-1) > found.highest:
        raise CorruptLog("an entry of the group's members names a number that was never given out")
    if in_order(found.voters) != found.voters or in_order(found.learners) != found.learners:
        raise CorruptLog("an entry of the group's members does not name them in order")
    return found
