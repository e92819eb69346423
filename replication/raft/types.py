"""Settings of a Raft group, and the types that its parts share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from escrowmq.replication.format.wire import RaftMessage
from escrowmq.replication.log.member_history import MemberHistory

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Timing and limits of one group; the same on all of its replicas."""

    election_min_s: float = (
        0.3  # 6 heartbeats: fail-over in about half a second, no election for a short stall
    )
    election_max_s: float = 0.6  # a spread as wide as the minimum makes split votes rare
    heartbeat_s: float = 0.05  # must stay below election_min_s / 3 (pysyncobj checks it)
    leader_fallback_s: float = 1.0  # stock: 30 s, for which an isolated leader would keep its clients waiting
    send_batch_bytes: int = 1 << 20  # one AppendEntries; larger only delays the first ack
    window_bytes: int = 4 << 20  # per peer, unacknowledged; more only adds latency (measured)
    apply_chunk: int = 256  # entries per tick: messages are handled in between
    apply_budget_s: float = 0.02  # and time per tick, well below an election time-out
    commit_notify_s: float = 0.004  # an idle leader tells followers the commit index after this
    proposal_timeout_s: float = 10.0  # after this the outcome is unknown to the proposer
    outstanding_entries_max: int = 16_384  # proposals not yet applied; beyond: Overloaded
    outstanding_bytes_max: int = 64 << 20
    transfer_timeout_s: float = 1.0  # a slower handover is given up, and proposals flow again
    # A leader whose disk takes longer, or lacks room for longer, hands over; a slow fsync takes far less.
    disk_stall_s: float = 2.0
    damage_stall_s: float = (
        2.0  # so does one that needs a damaged entry for longer: mending takes milliseconds
    )
    # Longest pause between two such attempts, also of a leader without room; each refuses proposals.
    damage_again_s: float = 30.0


class Log(Protocol):
    """What Raft needs from the log; ``SegmentJournal`` provides it. Indexes are log indexes.

    It must be a pysyncobj ``Journal`` too, which the core reads and appends to.
    """

    @property
    def members(self) -> MemberHistory:
        """Which configuration of the group is in force from which entry on."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def last_term(self) -> int: ...
    @property
    def durable_index(self) -> int:
        """Up to here the log survives a power cut."""

    def __len__(self) -> int: ...
    def __getitem__(self, positions: slice) -> Any:
        """Entries by their positions in the list, not by their indexes."""

    def term_at(self, index: int) -> int | None: ...
    def first_of_term(self, index: int) -> int: ...
    def read(self, index: int) -> bytes:
        """Raises DamagedEntry while the entry is damaged."""

    def batch(self, index: int, max_bytes: int) -> list[tuple[bytes, int, int]]:
        """At least one entry, from ``index`` on; raises DamagedEntry while that one is damaged."""

    @property
    def damaged(self) -> Mapping[int, object]:
        """The entries that are known to be damaged, by their indexes; nearly always none."""

    def damaged_after(self, index: int) -> int | None:
        """The first entry after ``index`` that is known to be damaged."""

    def add(self, command: bytes, index: int, term: int) -> None: ...
    def deleteEntriesFrom(self, entryFrom: int) -> None:
        """Cut off everything from this position in the list on."""


class PeerLink(Protocol):
    """How messages leave. ``send`` may drop; ``room`` is False while a peer's buffer is full."""

    def send(self, peer: str, message: RaftMessage) -> bool: ...
    def room(self, peer: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A follower as its leader sees it."""

    peer: str
    connected: bool
    match_index: int
    next_index: int
    in_flight_bytes: int
    too_far_behind: bool
