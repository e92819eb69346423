"""What a replica tells of its counters: replication/metrics.py says what counts, and carried_answers.py the
rules that the fields keep.

Counters count since the process started. Of names (apps, topics) so many are told at most; the rest is one
sum, and how many names there are is told with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from escrowmq.replication.calling.carried_answers import Carried
from escrowmq.replication.metrics import Histogram


class HistogramReport(Carried, frozen=True):
    """``counts[i]``: values up to ``bounds[i]``, and above the one before; the last: above all bounds."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float

    @classmethod
    def of(cls, histogram: Histogram) -> HistogramReport:
        """As it is now."""
        return cls(list(histogram.bounds), list(histogram.counts), histogram.total)


class Named(Carried, frozen=True, kw_only=True):
    """Figures by name, in columns; ``rest`` has the sums of those that are not named. ``all``: how many names
    there are."""

    names: Sequence[str]
    columns: Sequence[Sequence[int]]
    rest: Sequence[int]
    all: int


class LedMetrics(Carried, frozen=True, kw_only=True):
    """Of a group, as its leader tells.

    ``apps``: open and parked transactions. ``topics``: messages that ever became readable, which all replicas
    agree on, and bytes of them since this process started. ``oldest_age_s``: since the first of the open
    transactions was prepared, by the group's time; 0: none is open.
    """

    apps: Named
    topics: Named
    oldest_age_s: float


class MetricsReport(Carried, frozen=True, kw_only=True):
    """A replica's counters and histograms.

    ``prepared`` and ``decided`` ("COMMITTED/producer") count what it has done as leader, each transaction at
    one replica; ``refused`` requests by reason; ``terms_led``: how often it came to lead. ``histograms`` are
    of seconds. ``led``: None unless it leads. ``disk_bytes``: size of its file system.
    """

    gid: int
    rid: int
    pid: int = 0
    terms_led: int = 0
    link_connects: int = 0
    prepared: int = 0
    decided: Mapping[str, int] = msgspec.field(default_factory=dict)
    refused: Mapping[str, int] = msgspec.field(default_factory=dict)
    histograms: Mapping[str, HistogramReport] = msgspec.field(default_factory=dict)
    disk_bytes: int = 0
    led: LedMetrics | None = None
