"""Topics that brokers write into: retries and dead letters of consumer groups, replies to applications.

They are ordinary topics with as many partitions as there are broker groups, the first of them in group 0: so
each broker group has exactly one partition of each, with its own number, and what a leader writes there stays
in its group. Whoever uses a consumer group first creates them, with CREATE_TOPIC. Clients create no other
topics whose names begin like theirs, and send no messages to them; anyone may read them.
"""

from __future__ import annotations

from typing import Final

#: Names that begin so are not for users' topics.
RESERVED: Final = "__"
RETRY, DEAD, REPLIES = "__retry.", "__dead.", "__replies."
_KINDS: Final = (RETRY, DEAD, REPLIES)
#: Longest name of a group or an app that can have such topics: a topic's name has 200 characters.
OWNER_CHARS_MAX: Final = 180


def retry_topic(group: str) -> str:
    """Where the messages of a group that have failed come back."""
    return RETRY + group


def dead_topic(group: str) -> str:
    """Where the messages are with which a group has given up."""
    return DEAD + group


def replies_topic(app: str) -> str:
    """Where an application hears what became of its messages."""
    return REPLIES + app


def is_internal(topic: str) -> bool:
    """Whether only brokers write into a topic of this name."""
    return topic.startswith(_KINDS)


def owner_of(topic: str) -> str:
    """The group or app of an internal topic."""
    return topic[topic.index(".") + 1 :]


def owner_problem(what: str, name: str) -> str | None:
    """Why a group or an app (``what``) of this name can have no internal topics; None: it can."""
    if not name or len(name) > OWNER_CHARS_MAX or not all(c.isalnum() or c in "._-" for c in name):
        return f"{what} {name!r}: 1 to {OWNER_CHARS_MAX} letters, digits, '.', '_' or '-'"
    return f"{what} {name!r}: names that begin with {RESERVED!r} are reserved" if is_reserved(name) else None


def is_reserved(name: str) -> bool:
    """Whether no topic of a user, and no group, may get this name."""
    return name.startswith(RESERVED)
