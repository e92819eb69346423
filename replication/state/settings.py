"""Replicated settings: numbers that every replica must share, because what is remembered depends on them.

They stand in the state and in snapshots, and change only by a SETTINGS entry, so all replicas forget the
same things at the same entry. Before level 2 they were constants of the software, which are the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from escrowmq.replication.errors import UnknownVersion


@dataclass(frozen=True, slots=True)
class Settings:
    """The values in force."""

    #: Settled transactions remembered over all apps: at least this many, at most twice. 500,000 are ten
    #: seconds at 50,000/s, and the most takes 130 MB, however many apps there are.
    settled_generation: int = 500_000
    #: (producer, partition) pairs whose sequence numbers are remembered: at least this many, at most twice.
    #: One takes 0.4 KB with one batch and 1 KB with the five that are kept, so the most, 1,000,000, are up to
    #: 2 GB on every replica: too much for a default.
    producers_generation: int = 20_000
    #: Consumer groups whose positions are kept: those that committed last. Kafka's are forgotten a week after
    #: their last member has left; by number, memory is bounded too.
    groups_kept: int = 50_000
    #: Seconds for which a settled id that the application gave is remembered at least: such ids come back by
    #: themselves, long after. A day: whoever repeats an order does so within one. At most twice as long while
    #: entries come at least once a minute, for longer where they are rarer.
    remember_ids_s: int = 86_400
    #: Such ids remembered over all apps, in all: 2,000,000 take 260 MB. What exceeds it is forgotten sooner,
    #: but never one of the newer half; or, with ``remember_ids_strictly``, new ones are refused until there
    #: is room.
    remember_ids_max: int = 2_000_000
    remember_ids_strictly: int = 0

    def changed(self, values: Mapping[str, int]) -> Settings:
        """With these values instead. Raises UnknownVersion for a name that this software does not know: a
        replica that passed it over would go on with another state than its peers."""
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
#: Least and most that a client may set. The least is for simulators, in which tables turn over all the time;
#: the most is what memory can hold (ten times the default: 1.3 GB of settled transactions).
BOUNDS: dict[str, tuple[int, int]] = {
    "settled_generation": (1, 5_000_000),
    "producers_generation": (1, 1_000_000),
    "groups_kept": (1, 1_000_000),
    "remember_ids_s": (1, 366 * 86_400),
    "remember_ids_max": (2, 20_000_000),
    "remember_ids_strictly": (0, 1),
}


def setting_problem(values: Mapping[str, int]) -> str | None:
    """Why a client's SETTINGS is refused; None: it is fine."""
    for name, value in values.items():
        if name not in BOUNDS:
            return f"unknown setting {name!r}; known: {', '.join(BOUNDS)}"
        least, most = BOUNDS[name]
        if not least <= value <= most:
            return f"setting {name!r} must be {least} to {most}, not {value}"
    return None
