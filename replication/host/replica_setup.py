"""Arguments for opening a replica: its identity, the broker's configuration, and its surroundings."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, overload

from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.format.membership import in_order
from escrowmq.replication.host.repair import NoPeers, PeerSource
from escrowmq.replication.log.datadir import Identity
from escrowmq.replication.log.disk import Disk, RealDisk
from escrowmq.replication.net.tcp import Resolve
from escrowmq.replication.net.tls import TlsFiles
from escrowmq.replication.replica.replica import Limits

# ------------------------------------------------------------------------------------------------------------
# The other members of its group as one replica knows them, before its log tells and after.
#
# At first they are the group's founders, and the replicas that the supervisor named when it started the
# process. Members change while a replica is away or is being repaired; then none that it knows may be left,
# and it does not know those that could send it the entries that say so. So any caller that knows better tells
# it (``tell``). Once the replica runs, its node decides from the log whom it listens to (``follow``).
#
# The version of the configuration is the list's epoch: an older list changes nothing. A replica on the list
# may be asked and listened to. Which ones count is decided by the log alone.


class PeerList(Sequence[str]):
    """Raft ids of the others, ordered by number. Thread-safe: an iteration is over the
    list as it was when the iteration began."""

    def __init__(self, own: str, first: Iterable[str]) -> None:
        self._own, self._lock = own, threading.Lock()
        self._now = self._others(first)
        self.epoch = 0

    def tell(self, epoch: int, members: Iterable[str]) -> None:
        """A caller says that these are the members in configuration ``epoch``. No id is removed from the
        list: only the log can tell that the caller is right."""
        with self._lock:
            if epoch >= self.epoch:
                self.epoch = epoch
                self._now = self._others({*self._now, *members})

    def follow(self, epoch: int, heard: Iterable[str]) -> None:
        """The node listens to these, according to a log whose newest configuration is ``epoch``."""
        with self._lock:
            self.epoch = max(self.epoch, epoch)
            self._now = self._others(heard)

    def _others(self, members: Iterable[str]) -> tuple[str, ...]:
        return in_order(set(members) - {self._own})

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def __len__(self) -> int:
        return len(self._now)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._now[index]


class HostConfig(Protocol):
    """The broker settings that are used here; ``actors/broker/config.py`` has the reasons."""

    @property
    def segment_bytes(self) -> int: ...
    @property
    def queue_bytes(self) -> int: ...
    @property
    def request_bytes_max(self) -> int: ...
    @property
    def open_transactions_max(self) -> int: ...
    @property
    def copy_bytes_max(self) -> int: ...
    @property
    def timers_max(self) -> int: ...
    @property
    def election_min_s(self) -> float: ...
    @property
    def election_max_s(self) -> float: ...
    @property
    def heartbeat_s(self) -> float: ...
    @property
    def disk_reserve_bytes(self) -> int: ...
    @property
    def scrub_period_s(self) -> float: ...
    @property
    def scrub_bytes_per_s(self) -> int: ...
    @property
    def find_cache_bytes(self) -> int: ...
    @property
    def find_cpu_share(self) -> float: ...
    @property
    def fetch_threads(self) -> int: ...
    @property
    def feedback_threads(self) -> int: ...
    @property
    def share_threads(self) -> int: ...


#: Reports of every replica of every group on its format level, by (group, replica).
AskLevels = Callable[[], Mapping[tuple[int, int], LevelReport | None]]


def nobody() -> Mapping[tuple[int, int], LevelReport | None]:
    """For a replica that has no other to ask."""
    return {}


def exit_process(error: BaseException) -> None:
    """End the process at once: nothing may be written after a failed fsync, not even by exit handlers."""
    os._exit(70)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetup:
    """Everything that opening a replica needs.

    ``founders``: how many replicas the group began with, numbered from 0. It is stored with the cluster and
    never changes, whatever the number of replicas is today; a replica with a higher number came later
    (``joining``). ``told``: the numbers of the group's members, as known to the process that starts this one;
    needed by a replica that comes later, and by one whose group has changed since it last ran.
    ``resolve(peer)`` returns where the replica of that number listens (None: not known now); it may be slow.
    ``levels()`` asks every replica of every group, including this one, for its format level, and may block
    for seconds; without an answer the group stays at its level. ``source`` reads from the other replicas when
    this one needs a copy of the log. ``founded()``: whether the group is known to have had a leader, so that
    an empty directory means a lost one; None: not known, and an empty replica waits. It may be slow, and only
    an empty replica calls it. ``ask_members()``: the numbers of the group's members now, () if not known;
    called by an empty replica that knows no other. ``fatal(error)`` must end the process.
    ``disk(path)`` opens a directory, and creates it.
    """

    config: HostConfig
    identity: Identity
    groups: int
    founders: int
    data_dir: Path
    listen_host: str
    secret: bytes = field(repr=False)
    resolve: Resolve
    source: PeerSource = field(default_factory=NoPeers)
    levels: AskLevels = nobody
    founded: Callable[[], bool | None] = lambda: False
    tls: TlsFiles | None = None
    told: tuple[int, ...] = ()
    ask_members: Callable[[], Iterable[int]] = lambda: ()
    report: Callable[[str], None] = lambda text: None
    fatal: Callable[[BaseException], None] = exit_process
    disk: Callable[[Path], Disk] = RealDisk
    wall_clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    peers: PeerList = field(init=False)

    def limits(self) -> Limits:
        """Bounds of the replica, as the broker is configured."""
        config = self.config
        return Limits(
            open_transactions_max=config.open_transactions_max,
            queue_bytes_max=config.queue_bytes,
            copy_bytes=config.copy_bytes_max,
            timers_max=config.timers_max,
        )

    def __post_init__(self) -> None:
        known = {*self.founding_peers, *map(str, self.told)}
        object.__setattr__(self, "peers", PeerList(str(self.identity.replica), known))

    @property
    def founding_peers(self) -> list[str]:
        """The Raft ids of the group's other founders."""
        return [str(rid) for rid in range(self.founders) if rid != self.identity.replica]

    @property
    def joining(self) -> bool:
        """Whether this replica came after the group's beginning."""
        return self.identity.replica >= self.founders

    @property
    def never_replaced(self) -> bool:
        """Whether no replica had this number before, as far as the supervisor has counted."""
        return self.identity.incarnation == 0

    def __str__(self) -> str:
        return f"replica {self.identity.replica} of group {self.identity.group}"
