"""Replicated settings: numbers that every replica must share, because they determine what is remembered.

They are part of the state and of snapshots, and change only by a SETTINGS entry, so all replicas forget the
same things at the same entry. Before level 2 they were constants of the software, which are now the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from escrowmq.replication.errors import UnknownVersion


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
