"""A replica's counters as it reports them: replication/metrics.py says what is counted, and
carried_answers.py has the rules for the fields.

Counters count since the process started. The number of names (apps, topics) reported is limited; the rest is
one sum, reported with the total number of names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from escrowmq.replication.calling.answers import OverdueReport
from escrowmq.replication.calling.carried_answers import Carried, prepare
from escrowmq.replication.metrics import Histogram


class HistogramReport(Carried, frozen=True):
    """``counts[i]``: values in ``(bounds[i - 1], bounds[i]]``; the last count: values above all bounds."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float

    @classmethod
    def of(cls, histogram: Histogram) -> HistogramReport:
        """The histogram's present values."""
        return cls(list(histogram.bounds), list(histogram.counts), histogram.total)


class Named(Carried, frozen=True, kw_only=True):
    """Figures by name, in columns. ``rest``: for each column, the sum over the names left out. ``all``: the
    total number of names."""

    names: Sequence[str]
    columns: Sequence[Sequence[int]]
    rest: Sequence[int]
    all: int


class FindMetrics(Carried, frozen=True):
    """What searches have left behind at a replica: ``files`` of blocks, and their ``bytes``; blocks in
    memory. ``hits``, ``misses``: questions about a block that was there, and about one that had to be read;
    ``damaged``: files that were removed because something was wrong with them."""

    bytes: int = 0
    files: int = 0
    memory_bytes: int = 0
    hits: int = 0
    misses: int = 0
    damaged: int = 0


class CarryMetrics(Carried, frozen=True):
    """What a replica has stored anew, as leader, so that older log can go: entries, messages and bytes."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0


class LedMetrics(Carried, frozen=True, kw_only=True):
    """Figures of a group, as its leader reports them.

    ``apps``: open and parked transactions. ``topics``: messages that ever became readable, on which all
    replicas agree, and their bytes since this process started. ``oldest_age_s``: age of the oldest open
    transaction since it was prepared, by the group's time; 0: none is open. ``overdue``: transactions that
    were not checked in time. ``delayed``: delayed messages that wait, and ``delayed_bytes`` theirs;
    ``pinned_bytes``: log that is kept for them alone. ``shares``: pairs of a share group and a partition, and
    final ranges of all of them.
    """

    apps: Named
    topics: Named
    oldest_age_s: float
    overdue: OverdueReport
    delayed: int
    delayed_bytes: int
    pinned_bytes: int
    shares: Sequence[int]


class MetricsReport(Carried, frozen=True, kw_only=True):
    """A replica's counters and histograms.

    ``prepared`` and ``decided`` ("COMMITTED/producer") count what it did as leader, so that each transaction
    is counted at one replica; ``refused``: requests by reason; ``terms_led``: how often it became leader.
    ``clients``: those with a connection of their own now; ``client_requests``: what came over such ones.
    ``client_unread_bytes``: answers that they have not read; ``clients_cut``: how many were disconnected for
    that. ``released``, ``cancelled``: delayed messages that became readable, or were cancelled, under its
    lead. ``forwarded``: what became of messages that consumer groups could not handle, and replies, by
    kind. ``run_files``: those that its partitions' indexes are in, and ``stored_descriptors``: how many of
    them and of the files of timers are open. ``histograms`` are in seconds.
    ``led``: None unless it leads. ``disk_bytes``: of its file system.
    """

    gid: int
    rid: int
    pid: int = 0
    terms_led: int = 0
    link_connects: int = 0
    clients: int = 0
    client_requests: int = 0
    client_unread_bytes: int = 0
    clients_cut: int = 0
    prepared: int = 0
    decided: Mapping[str, int] = msgspec.field(default_factory=dict)
    refused: Mapping[str, int] = msgspec.field(default_factory=dict)
    histograms: Mapping[str, HistogramReport] = msgspec.field(default_factory=dict)
    disk_bytes: int = 0
    released: int = 0
    cancelled: int = 0
    forwarded: Mapping[str, int] = msgspec.field(default_factory=dict)
    run_files: int = 0
    stored_descriptors: int = 0
    find: FindMetrics = FindMetrics()
    carried: CarryMetrics = CarryMetrics()
    led: LedMetrics | None = None


prepare(__name__)
