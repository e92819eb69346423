"""How ``consume -f`` prints a record: text with places for its parts, in the manner of kcat.

``%k %v\\n`` prints key and value as they are, byte for byte, and ends the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.replication.model import ConsumerRecord

#: Letter -> what it stands for in --help, and how it is made.
PARTS: dict[str, tuple[str, Callable[[ConsumerRecord], bytes]]] = {
    "t": ("topic", lambda record: record.topic.encode()),
    "p": ("partition", lambda record: b"%d" % record.partition),
    "o": ("offset", lambda record: b"%d" % record.offset),
    "T": ("timestamp in ms", lambda record: b"%d" % record.timestamp),
    "k": ("key", lambda record: record.key or b""),
    "v": ("value", lambda record: record.value),
    "h": ("headers", lambda record: b",".join(n.encode() + b"=" + v for n, v in record.headers.items())),
    "x": ("transaction id", lambda record: (record.tx_id or "").encode()),
    "K": ("bytes of the key, -1: none", lambda record: b"%d" % _size(record.key)),
    "V": ("bytes of the value", lambda record: b"%d" % len(record.value)),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|[^%\\]+", re.DOTALL)
HELP = "Print each record so: " + ", ".join(f"%{letter} {what}" for letter, (what, _) in PARTS.items())


def _size(key: bytes | None) -> int:
    return -1 if key is None else len(key)


def template(text: str) -> Callable[[ConsumerRecord], bytes]:
    """What makes the bytes of a record. Raises ConfigError for a letter that stands for nothing."""
    from escrowmq.replication.errors import ConfigError

    pieces: list[bytes | Callable[[ConsumerRecord], bytes]] = []
    for found in _PIECE.finditer(text):
        letter, escape = found[1], found[2]
        if letter is None and escape is None:
            pieces.append(found[0].encode())
        elif letter == "%":
            pieces.append(b"%")
        elif letter is not None and letter in PARTS:
            pieces.append(PARTS[letter][1])
        elif escape is not None and escape in _ESCAPES:
            pieces.append(_ESCAPES[escape])
        elif escape is not None and len(escape) == 3:
            pieces.append(bytes.fromhex(escape[1:]))
        else:
            raise ConfigError(
                f"-f does not know {found[0]!r}; "
                f"there are %{', %'.join(PARTS)}, %% and \\n \\t \\r \\0 \\\\ \\xHH"
            )

    def made(record: ConsumerRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in pieces)

    return made
