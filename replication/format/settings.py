"""Settings that are replicated: of a topic, of a consumer group, and of a broker group; and what values they
have.

All are part of the log's format: an entry that does not state one means its default here, which therefore
never changes. An unknown name raises UnknownVersion, because a replica that ignored it would diverge from its
peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from escrowmq.replication.errors import UnknownVersion

# ------------------------------------------------------------------ a topic

PARTITIONS_MAX = 10_000
#: The settings that an entry means if it does not state them. Part of the log's format: they never change, or
#: two replicas could apply an entry differently. Clients state every setting, with their own defaults.
UNSTATED: Mapping[str, int | str] = {
    "partitions": 1,
    "on_check_exhausted": "hold",
    "check_max": 15,
    "transaction_timeout_ms": 6000,
    "retention_ms": 604_800_000,  # seven days
    "retention_bytes": -1,
}

#: What ALTER_TOPIC can change. Not the number of partitions: keys would move, and lose their order.
ALTERABLE = frozenset(UNSTATED.keys() - {"partitions"})


def alter_problem(name: str, settings: Mapping[str, object]) -> str | None:
    """Why a client's ALTER_TOPIC is refused; None: it is accepted."""
    if "partitions" in settings:
        return (
            "the number of partitions cannot be altered: keys would move to other partitions; create another "
            "topic with that number, and send to it"
        )
    return settings_problem(name, settings)


def settings_problem(name: str, settings: Mapping[str, object]) -> str | None:
    """Why these settings cannot be applied, or None. Used at admission and again when applied."""
    if not name or len(name) > 200 or not all(c.isalnum() or c in "._-" for c in name):
        return f"topic name {name!r}: 1 to 200 letters, digits, '.', '_' or '-'"
    for key, value in settings.items():
        if key not in UNSTATED:
            return f"unknown topic setting {key!r}; known: {', '.join(sorted(UNSTATED))}"
        wanted = str if key == "on_check_exhausted" else int
        if type(value) is not wanted:
            return f"topic setting {key!r} must be {wanted.__name__}, not {value!r}"
    partitions = settings.get("partitions", 1)
    if not 1 <= partitions <= PARTITIONS_MAX:  # type: ignore[operator]
        return f"partitions must be 1 to {PARTITIONS_MAX}, not {partitions}"
    if settings.get("on_check_exhausted", "hold") not in ("hold", "rollback"):
        return "on_check_exhausted must be 'hold' or 'rollback'"
    for key in ("check_max", "transaction_timeout_ms"):
        if settings.get(key, 1) < 1:  # type: ignore[operator]
            return f"topic setting {key!r} must be at least 1"
    for key in ("retention_ms", "retention_bytes"):
        if settings.get(key, -1) < -1:  # type: ignore[operator]
            return f"topic setting {key!r} must be -1 (unlimited) or more"
    return None


# ------------------------------------------------------------------ a consumer group
# What a consumer group has set about retries and leases: in the state of every broker group.

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


# ------------------------------------------------------------------ a broker group
#
# Numbers that every replica must share, because they determine what is remembered. They change only by a
# SETTINGS entry, so all replicas forget the same things at the same entry.


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in force."""

    #: Settled transactions remembered over all apps: at least this many, at most twice. 500,000 are ten
    #: seconds at 50,000/s, and the maximum takes 130 MB, however many apps there are.
    settled_generation: int = 500_000
    #: (producer, partition) pairs whose sequence numbers are remembered: at least this many, at most twice.
    #: One takes 0.4 KB with one batch and 1 KB with the five that are kept, so the maximum, 1,000,000, takes
    #: up to 2 GB on every replica: too much for a default.
    producers_generation: int = 20_000
    #: Consumer groups whose positions are kept: those that committed last. Kafka forgets a group a week after
    #: its last member has left; a limit by number bounds memory too.
    groups_kept: int = 50_000
    #: Seconds for which a settled id that the application chose is remembered at least: such ids come back
    #: long after. A day: an application that repeats an order does so within one. At most twice as long while
    #: entries arrive at least once a minute, longer where they are rarer.
    remember_ids_s: int = 86_400
    #: Maximum number of such ids remembered over all apps: 2,000,000 take 260 MB. Beyond it ids are forgotten
    #: sooner, but never one of the newer half; or, with ``remember_ids_strictly``, new ones are refused until
    #: there is room.
    remember_ids_max: int = 2_000_000
    remember_ids_strictly: int = 0

    def changed(self, values: Mapping[str, int]) -> Settings:
        """A copy with these values. Raises UnknownVersion for a name that this software does not know: a
        replica that ignored it would diverge from its peers."""
        unknown = sorted(values.keys() - BOUNDS.keys())
        if unknown:
            raise UnknownVersion(
                f"replicated setting {unknown[0]!r} is not known to this software; upgrade it"
            )
        return replace(self, **values)

    def values(self) -> dict[str, int]:
        """By name, for snapshots and for operators."""
        return asdict(self)


#: A new name needs a new format level, or a replica with older software would stop at it.
#: Minimum and maximum that a client may set. The minimum is for simulators, in which tables turn over all the
#: time; the maximum is what memory can hold (ten times the default: 1.3 GB of settled transactions).
BOUNDS: dict[str, tuple[int, int]] = {
    "settled_generation": (1, 5_000_000),
    "producers_generation": (1, 1_000_000),
    "groups_kept": (1, 1_000_000),
    "remember_ids_s": (1, 366 * 86_400),
    "remember_ids_max": (2, 20_000_000),
    "remember_ids_strictly": (0, 1),
}


def setting_problem(values: Mapping[str, int]) -> str | None:
    """Why a client's SETTINGS is refused; None: it is accepted."""
    for name, value in values.items():
        if name not in BOUNDS:
            return f"unknown setting {name!r}; known: {', '.join(BOUNDS)}"
        least, most = BOUNDS[name]
        if not least <= value <= most:
            return f"setting {name!r} must be {least} to {most}, not {value}"
    return None
