"""Headers with a meaning of their own: a message's tag.

They are ordinary headers in the log, so brokers, storage and other clients need not know them, and a
message that has none of them is stored as before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from escrowmq.replication.errors import ConfigError, InvalidMessage

#: What consumers with ``tags`` select by. Its content is UTF-8.
TAG = "escrowmq-tag"
#: A tag is a word, not a document: consumers compare it for every message.
TAG_BYTES_MAX = 255
#: Tags of one consumer.
TAGS_MAX = 1000


def with_tag(headers: Mapping[str, bytes] | None, tag: object) -> dict[str, bytes]:
    """A message's headers with its tag. Raises InvalidMessage."""
    return {**(headers or {}), TAG: _encoded(tag)}


def text_of(headers: Mapping[str, bytes], name: str) -> str | None:
    """The content of a header as text; None if there is no such header."""
    content = headers.get(name)
    return None if content is None else content.decode(errors="replace")


def tags_wanted(tags: Iterable[str] | None) -> frozenset[bytes] | None:
    """What a consumer's ``tags`` are in headers; None: it reads all messages. Raises ConfigError."""
    if tags is None:
        return None
    if isinstance(tags, str | bytes) or not isinstance(tags, Collection) or not 1 <= len(tags) <= TAGS_MAX:
        raise ConfigError(f"tags must be a list of 1 to {TAGS_MAX} str, or None for all messages")
    try:
        return frozenset(map(_encoded, tags))
    except InvalidMessage as error:
        raise ConfigError(str(error)) from None


def _encoded(tag: object) -> bytes:
    try:
        content = tag.encode() if type(tag) is str else b""
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"tag {tag!r:.80} is not valid Unicode: {error.reason}") from error
    if not 0 < len(content) <= TAG_BYTES_MAX:
        raise InvalidMessage(f"a tag must be a str of 1 to {TAG_BYTES_MAX} bytes, not {tag!r:.80}")
    return content
