"""A bounded memory of past work, identical on every replica.

Two generations of a dict instead of an LRU list: when the young one is full it becomes the old one and
the previous old one is forgotten. Every key is remembered for at least one full generation, look-ups are
two dict probes, there is no per-key bookkeeping, and the rule depends only on the order of operations, so
all replicas forget the same keys at the same entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

from escrowmq.replication.errors import UnknownVersion

K = TypeVar("K")
V = TypeVar("V")


def _large_table() -> dict[Any, Any]:
    """An empty dict in which probes are cheap although it will not fit the processor's caches.

    CPython keeps no hashes in a dict that has only ever had strings as keys: each probe that meets another
    key reads that string, somewhere in memory. One key of another kind, even for a moment, makes it keep
    them, for eight bytes a key. Measured with 500,000 to 1,000,000 ids: a probe takes 0.15 us instead of
    0.26.
    """
    table: dict[Any, Any] = {None: None}
    del table[None]
    return table


class TwoGenerations(Generic[K, V]):
    """Remembers at least the last ``generation`` keys set, at most twice as many."""

    __slots__ = ("generation", "old", "young")

    def __init__(self, generation: int) -> None:
        assert generation > 0
        self.generation = generation
        self.young: dict[K, V] = _large_table()
        self.old: dict[K, V] = _large_table()

    def get(self, key: K) -> V | None:
        """The remembered value, or None."""
        value = self.young.get(key)
        return self.old.get(key) if value is None else value

    def set(self, key: K, value: V) -> bool:
        """Remember ``value``; returns whether the old generation was forgotten because of it."""
        self.young[key] = value
        if len(self.young) < self.generation:
            return False
        self.turn()
        return True

    def turn(self) -> None:
        """Forget the old generation; the young one takes its place."""
        self.old, self.young = self.young, _large_table()

    def discard_where(self, doomed: Any) -> None:
        """Forget every key for which ``doomed(key)`` holds (rare: a deleted topic)."""
        self.young = {key: value for key, value in self.young.items() if not doomed(key)}
        self.old = {key: value for key, value in self.old.items() if not doomed(key)}

    def copy(self) -> tuple[dict[K, V], dict[K, V]]:
        """(old, young) for a snapshot. The old one never changes again, so it needs no copy."""
        return self.old, self.young.copy()

    def __len__(self) -> int:
        return len(self.old) + len(self.young)


# ------------------------------------------------------------------ what is remembered of producers
# Which batches of plain messages were stored: per producer and partition, in bounded memory.
#
# A batch has a number, so one that is sent again is stored only once and gets the same answer. The memory
# is bounded: a producer that was silent while many others sent is forgotten, and then looks like a new one.
# From level 3 on the first batch of a producer tells what its client had heard of before it was first sent:
# the time of an entry of this group. Everything forgotten was stored at or before ``forgotten_ms``, and no
# batch is stored before what its client had heard of. So the first batch of an unknown producer may be a
# copy of a forgotten one if its client had heard of nothing later, and is refused; any other was certainly
# never stored.


#: Batches per producer and partition whose offsets are remembered; clients keep at most this many
#: unacknowledged, as in Kafka's idempotent producer.
SEQUENCES_KEPT = 5
#: Epoch, next sequence, ((sequence, base offset, time), ...).
Known = tuple[int, int, tuple[tuple[int, int, int], ...]]


class ProducerMemory(TwoGenerations[tuple[str, int], Known]):
    """By producer and slot of the partition.

    ``turned_ms``: when producers were last forgotten; -1: not since level 3. ``forgotten_ms``: the turn
    before that one. Not kept below level 3: batches do not tell what was heard, and snapshots do not hold it.
    """

    __slots__ = ("forgotten_ms", "turned_ms")

    def __init__(self, generation: int) -> None:
        super().__init__(generation)
        self.forgotten_ms = self.turned_ms = -1

    def is_stale(self, heard_ms: int) -> bool:
        """Whether a client that had heard of nothing later may have sent something that is now forgotten."""
        return heard_ms <= self.forgotten_ms != -1

    def note_turn(self, now_ms: int) -> None:
        """What was stored up to the previous turn is now forgotten."""
        self.forgotten_ms, self.turned_ms = self.turned_ms, now_ms


# ------------------------------------------------------------------------------------------------------------
# Replicated settings: numbers that every replica must share, because they determine what is remembered.
#
# They are part of the state and of snapshots, and change only by a SETTINGS entry, so all replicas forget the
# same things at the same entry. Before level 2 they were constants of the software, which are now the
# defaults.


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
