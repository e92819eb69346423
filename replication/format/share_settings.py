"""What a consumer group has set about retries and leases: in the state of every broker group.

Part of the log's format: the defaults never change, because every replica applies them to groups that have
set nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from escrowmq.replication.errors import UnknownVersion

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
