"""What an operation of the log is: a class with named columns, which says everything about the operation.

An operation is one frame of an entry: its columns as a msgpack array (column-wise, so that one C call decodes
the metadata of a thousand messages), then a body of rows that only clients decode. Each is one subclass of
``Operation``, in ``ops``, ``timer_ops`` or ``share_ops``: its fields are the columns and their types,
``KIND`` and ``VERSION`` stand in its frame, ``LEVEL`` is the format level of a group whose log may have it
(``level_needed``: that of one that may have it with this content),
``SENDER`` who may write it, and ``problem`` says what a decoder cannot check. What applies it stands in
``StateMachine``.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

#: Operation frame: u8 kind, u8 version, u16 reserved, u32 metadata bytes, u32 body bytes.
FRAME = struct.Struct("<BBHII")
#: For msgpack whose types do not matter.
encode_msgpack = msgspec.msgpack.Encoder().encode


class OpType(enum.IntEnum):
    """Kinds of operations. The first seven come from FMQ; the rest are ours."""

    MESSAGE = 1
    PREPARE = 2
    PRE_MESSAGE = 3
    REF_MESSAGE = 4
    TX_MESSAGE = 5
    COMMIT = 6
    ROLLBACK = 7
    SCHEDULED = 8
    PRE_SCHEDULED = 9
    TIMER = 10
    RELEASE = 11
    CANCEL = 12
    FORWARD = 13
    SHARE_ACK = 14
    NACK = 15
    CREATE_TOPIC = 16
    DELETE_TOPIC = 17
    GROUP_OFFSETS = 18
    CHECKED = 19
    RETAIN = 20
    TRIM = 21
    GROUP_SETTINGS = 22
    CARRY = 23
    CANCELLED = 24
    TX_DONE = 25
    INQUIRE = 26
    PRE_OFFSETS = 27
    CUT = 28
    CLAIM = 29
    PLACES = 30
    LEVEL = 31
    ALTER_TOPIC = 32
    SETTINGS = 33
    SHARE_REPLY = 34
    DELETE_GROUP = 35
    PRE_LETTERS = 36


class Sender(enum.Enum):
    """Who may send or write an operation."""

    CLIENT = "a client sends it, and it is in the log as it was sent"
    REWRITTEN = "a client sends it; in the log the leader writes what it means"
    LEADER = "leaders only"


class Operation(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """See the module. A subclass has no defaults: an array with too few or too many columns is refused."""

    KIND: ClassVar[OpType]
    VERSION: ClassVar[int] = 1
    LEVEL: ClassVar[int] = 1
    SENDER: ClassVar[Sender] = Sender.CLIENT
    #: Whether it adds messages, transactions or topics, rather than settling existing ones, or making room.
    NEW_WORK: ClassVar[bool] = False
    #: Whether it is a part of the PREPARE before it, and has no result of its own.
    ATTACHED: ClassVar[bool] = False

    def frame(self, body: Sequence[bytes | memoryview] = ()) -> bytes:
        """A whole frame: header, columns, the body's parts joined."""
        packed = encode_msgpack(self)
        joined = body[0] if len(body) == 1 else b"".join(body)
        head = FRAME.pack(self.KIND, self.VERSION, 0, len(packed), len(joined))
        return b"".join((head, packed, joined))

    def level_needed(self) -> int:
        """The lowest format level of a group whose log may have it as it is. An operation with content that
        came later overrides this: a column that is a map, a setting."""
        return self.LEVEL

    def problem(self, body_bytes: int) -> str | None:
        """What is wrong with it, if a client has sent it; None: nothing. Whatever could make ``apply`` fail
        must be refused here."""
        return None


class MapColumn(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, frozen=True, gc=False):
    """A column that is a map: fields with their default are left out. So a later version may add fields here,
    and whoever does not use them writes what older software reads; a column of its own would be in each
    frame.
    """

    #: Fields that came later -> the format level that each needs where it is not left out.
    LEVELS: ClassVar[Mapping[str, int]] = {}

    def level_needed(self) -> int:
        """See ``Operation``."""
        if not self.LEVELS:
            return 1
        defaults = type(self)()
        used = [name for name in self.LEVELS if getattr(self, name) != getattr(defaults, name)]
        return max((self.LEVELS[name] for name in used), default=1)


def columns_of(operation: type[Operation]) -> list[tuple[str, Any]]:
    """Names and types of an operation's columns, in their order."""
    return [(field.name, field.type) for field in msgspec.structs.fields(operation)]
