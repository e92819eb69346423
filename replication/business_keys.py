"""Business keys: names by which an application finds a message again, such as the number of an order.

A message may have several. They travel in its header ``keys``, separated by single spaces, so that other
clients can write and read them. They do not choose the partition; the message's key does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from escrowmq.replication.errors import InvalidMessage

#: The header's name.
HEADER = "keys"
#: Limits of one message: they are indexed one by one when somebody searches.
KEYS_MAX, KEY_BYTES_MAX = 64, 1_024


def headers_with(keys: Sequence[str], headers: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """The headers and the business keys as one of them. Raises InvalidMessage."""
    if isinstance(keys, str) or not isinstance(keys, Sequence):
        raise InvalidMessage(f"keys must be a list of str, not {type(keys).__name__}")
    if headers and HEADER in headers:
        raise InvalidMessage(f"the header {HEADER!r} holds the business keys; give either it or keys=")
    if len(keys) > KEYS_MAX:
        raise InvalidMessage(f"a message has at most {KEYS_MAX} business keys, not {len(keys)}")
    encoded = [encoded_key(key) for key in keys]
    return {**(headers or {}), HEADER: b" ".join(encoded)} if encoded else dict(headers or {})


def encoded_key(key: str) -> bytes:
    """One business key in bytes. Raises InvalidMessage for anything that cannot be one."""
    if type(key) is not str:
        raise InvalidMessage(f"a business key must be str, not {type(key).__name__}")
    try:
        encoded = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"the business key {key!r} cannot be encoded as UTF-8") from error
    if encoded.split() != [encoded]:
        raise InvalidMessage(f"a business key has at least one character and no white space: {key!r}")
    if len(encoded) > KEY_BYTES_MAX:
        raise InvalidMessage(f"a business key has at most {KEY_BYTES_MAX} bytes, not {len(encoded)}")
    return encoded


def keys_of(header: bytes) -> list[bytes]:
    """The business keys in the header of a message, whoever wrote it: the first ``KEYS_MAX`` words."""
    return header.split(None, KEYS_MAX)[:KEYS_MAX]
