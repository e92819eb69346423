"""The format strings of ``consume -f``: text with placeholders for a record's parts, as in kcat.

``%k %v\\n`` prints key and value unchanged, byte for byte, and then ends the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.replication.model import ConsumerRecord

#: Letter -> its description in --help, and the function that makes its bytes.
PARTS: dict[str, tuple[str, Callable[[ConsumerRecord], bytes]]] = {
    "t": ("topic", lambda record: record.topic.encode()),
    "p": ("partition", lambda record: b"%d" % record.partition),
    "o": ("offset", lambda record: b"%d" % record.offset),
    "T": ("timestamp in ms", lambda record: b"%d" % record.timestamp),
    "k": ("key", lambda record: record.key or b""),
    "v": ("value", lambda record: record.value),
    "h": ("headers", lambda record: b",".join(n.encode() + b"=" + v for n, v in record.headers.items())),
    "x": ("transaction id", lambda record: (record.tx_id or "").encode()),
    "K": ("length of the key in bytes, -1 without one", lambda record: b"%d" % _size(record.key)),
    "V": ("length of the value in bytes", lambda record: b"%d" % len(record.value)),
}
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PIECE = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|[^%\\]+", re.DOTALL)
HELP = "Format of each record: " + ", ".join(f"%{letter} {what}" for letter, (what, _) in PARTS.items())


def _size(key: bytes | None) -> int:
    return -1 if key is None else len(key)


def template(text: str) -> Callable[[ConsumerRecord], bytes]:
    """A function from a record to the bytes to print. Raises ConfigError for an unknown letter or escape."""
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
                f"it knows %{', %'.join(PARTS)}, %% and \\n \\t \\r \\0 \\\\ \\xHH"
            )

    def made(record: ConsumerRecord) -> bytes:
        return b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in pieces)

    return made
