"""Headers with a meaning of their own: a message's tag, and the app that wants to hear what became of it.

They are ordinary headers in the log, so brokers, storage and other clients need not know them, and a
message that has none of them is stored as before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from escrowmq.replication.errors import ConfigError, InvalidMessage

#: What consumers with ``tags`` select by. Its content is UTF-8.
TAG = "escrowmq-tag"
#: The app that is told what became of the message.
REPLY_TO = "escrowmq-reply-to"
#: A tag is a word, not a document: consumers compare it for every message.
TAG_BYTES_MAX = 255
#: Tags of one consumer.
TAGS_MAX = 1000
#: An app with replies has a topic of its own, ``__replies.<app>``.
_APP = re.compile(r"(?!__)[a-zA-Z0-9._-]{1,180}", re.ASCII)


def with_own(headers: Mapping[str, bytes] | None, tag: object, reply_to: object) -> dict[str, bytes]:
    """A message's headers, and its tag and reply address as headers; either may be None. Raises
    InvalidMessage."""
    made = dict(headers or {})
    if tag is not None:
        made[TAG] = _encoded(tag)
    if reply_to is not None:
        problem = app_problem(reply_to)
        if problem is not None:
            raise InvalidMessage(f"reply_to: {problem}")
        made[REPLY_TO] = str(reply_to).encode()
    return made


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


def app_problem(app: object) -> str | None:
    """Why an app of this name cannot get replies; None: it can."""
    if type(app) is str and _APP.fullmatch(app) is not None:
        return None
    return (
        "an app that gets replies has a name of 1 to 180 of the characters a-z, A-Z, 0-9, '.', '_' and '-', "
        f"which does not begin with '__'; not {app!r:.80}"
    )


def _encoded(tag: object) -> bytes:
    try:
        content = tag.encode() if type(tag) is str else b""
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"tag {tag!r:.80} is not valid Unicode: {error.reason}") from error
    if not 0 < len(content) <= TAG_BYTES_MAX:
        raise InvalidMessage(f"a tag must be a str of 1 to {TAG_BYTES_MAX} bytes, not {tag!r:.80}")
    return content


# ------------------------------------------------------------------------------------------------------------
# Business keys: names by which an application finds a message again, such as the number of an order.
#
# A message may have several. They travel in its header ``keys``, separated by single spaces, so that other
# clients can write and read them. They do not choose the partition; the message's key does.

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
