"""Topics that brokers write into: retries and dead letters of consumer groups, replies to applications.

They are ordinary topics with as many partitions as there are broker groups, the first of them in group 0: so
each broker group has exactly one partition of each, with its own number, and what a leader writes there stays
in its group. Whoever uses a consumer group first creates them, with CREATE_TOPIC of version 3. From format
level 9 on clients create no other topics whose names begin like theirs, and send no messages to them; anyone
may read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from escrowmq.replication.errors import UnknownVersion

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


# ------------------------------------------------------------------------------------------------------------
# What a consumer group has set about retries and leases: in the state of every broker group.
#
# Part of the log's format: the defaults never change, because every replica applies them to groups that have
# set nothing.

#: A setting as it is in the log.
Value = int | str | list[int]
#: The kinds of groups; "": not decided.
STREAM, SHARE = "stream", "share"
#: "keep" them in the topic of dead letters, or "drop" them.
KEEP, DROP = "keep", "drop"
#: Ten years, as for every other delay.
DELAY_MS_MAX: Final = 10 * 366 * 86_400_000
DELAYS_MAX: Final = 100
ATTEMPTS_MAX: Final = 1_000_000
LEASE_MS: Final = (1_000, 12 * 3_600_000)


def _minutes(*minutes: int) -> tuple[int, ...]:
    return tuple(minute * 60_000 for minute in minutes)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The values in force. Times in ms; ``max_age_ms`` -1: no limit."""

    kind: str = ""
    #: A message that fails so often becomes a dead letter.
    max_attempts: int = 16
    #: The pause after the first failure, after the second, ...; the last one counts for all further ones.
    delays_ms: tuple[int, ...] = (1_000, 5_000, 10_000, 30_000, *_minutes(*range(1, 11), 20, 30, 60, 120))
    lease_ms: int = 30_000
    #: A message that fails so long after its first failure becomes a dead letter.
    max_age_ms: int = -1
    dead_letters: str = KEEP

    def changed(self, values: Mapping[str, Value]) -> GroupSettings:
        """A copy with these values. Raises UnknownVersion for a name that this software does not know: a
        replica that ignored it would diverge from its peers."""
        unknown = sorted(values.keys() - NAMES)
        if unknown:
            raise UnknownVersion(f"group setting {unknown[0]!r} is not known to this software; upgrade it")
        return replace(self, **{k: tuple(v) if type(v) is list else v for k, v in values.items()})  # type: ignore[arg-type]

    def values(self) -> dict[str, Value]:
        """By name, as they are in the log."""
        return {**asdict(self), "delays_ms": list(self.delays_ms)}

    def delay_ms(self, attempt: int) -> int:
        """The pause after this attempt (from 1) has failed."""
        return self.delays_ms[min(attempt, len(self.delays_ms)) - 1]


NAMES: Final = frozenset(GroupSettings.__dataclass_fields__)
DEFAULTS: Final = GroupSettings()


def group_settings_problem(values: Mapping[str, Value]) -> str | None:
    """Why a client's GROUP_SETTINGS is refused; None: it is accepted."""
    for name, value in values.items():
        if name not in NAMES:
            return f"unknown group setting {name!r}; known: {', '.join(sorted(NAMES))}"
        if name == "delays_ms":
            if type(value) is not list or not 1 <= len(value) <= DELAYS_MAX:
                return f"delays_ms must be a list of 1 to {DELAYS_MAX} delays"
            if min(value) < 0 or max(value) > DELAY_MS_MAX:
                return f"a delay must be 0 to {DELAY_MS_MAX} ms"
        elif name in ("kind", "dead_letters"):
            known = (STREAM, SHARE) if name == "kind" else (KEEP, DROP)
            if value not in known:
                return f"{name} must be {' or '.join(map(repr, known))}, not {value!r}"
        else:
            least, most = _BOUNDS[name]
            if type(value) is not int or not least <= value <= most:
                return f"{name} must be {least} to {most}, not {value!r}"
    if values.get("max_age_ms") == 0:
        return "max_age_ms must be -1 (no limit) or at least 1"
    return None


_BOUNDS: Final = {"max_attempts": (1, ATTEMPTS_MAX), "lease_ms": LEASE_MS, "max_age_ms": (-1, DELAY_MS_MAX)}
