"""Turns the result of a look into series (name, label values, number). All names are from table.py.

What a process reports about itself is passed on unchanged. Counters of one thing that come from several
processes are added up here so that they never decrease (``Totals``), and names that applications choose
are limited in number (``Names``). Both need state, so an exporter uses one ``Series`` all its life. Pure:
the time is taken from the look.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator
from operator import itemgetter
from typing import Any

from escrowmq.cluster.exporter.findings import Found
from escrowmq.cluster.exporter.table import BY_NAME
from escrowmq.replication.calling.metrics_report import HistogramReport, MetricsReport, Named

# ------------------------------------------------------------------------------------------------------------
# Limits the label values that applications choose: some get their own series, the others share one.
#
# Each series costs Prometheus storage, so their number must be bounded whatever applications do. Names get a
# slot in the order in which they appear, and keep it until they have been absent for a while; if slots
# changed hands often, each change would create a new series. Pure: takes ``now``.

log = logging.getLogger(__name__)

#: The label value for all names without a slot. An application's name "other" counts here, too.
OTHER = "other"
#: A name that was not seen for this long loses its slot. Longer than a restart of an application.
FORGET_AFTER_S = 3600.0
#: How often the log repeats that the limit is reached.
SAY_EVERY_S = 600.0


class Names:
    """The values of one label. Not thread-safe."""

    def __init__(self, label: str, most: int) -> None:
        """``label``: the name of the label; ``most``: number of slots, not counting ``OTHER``."""
        self.label, self.most = label, most
        #: Whether a name was recently refused a slot.
        self.limited = False
        self._seen: dict[str, float] = {}
        self._limited_at = self._said_at = float("-inf")

    def label_of(self, name: str, now: float) -> str:
        """The label value for this name: the name itself, or ``OTHER``."""
        if name in self._seen or len(self._seen) < self.most:
            self._seen[name] = now
            return name
        self.sent_away(now)
        return OTHER

    def has(self, name: str) -> bool:
        """Whether the name has a slot. Does not count as seeing it."""
        return name in self._seen

    def sent_away(self, now: float) -> None:
        """Record, and log from time to time, that there are names without a slot."""
        self._limited_at, self.limited = now, True
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            text = "there are more than %d values of label %r; the others are counted as %r"
            log.warning(text, self.most, self.label, OTHER)

    def tidy(self, now: float) -> list[str]:
        """Remove and return the names not seen for FORGET_AFTER_S. Call it once per look."""
        gone = [name for name, seen in self._seen.items() if now - seen >= FORGET_AFTER_S]
        for name in gone:
            del self._seen[name]
        self.limited = now - self._limited_at < FORGET_AFTER_S
        return gone


# ------------------------------------------------------------------------------------------------------------
# Sums counters from several processes so that the totals never decrease.
#
# A counter that a leader reports ends with its leadership, and the next leader's counter started with that
# process. So only increases are added, and only between two looks at the same process. Pure.


class Totals:
    """One total for each label value, fed from any number of sources."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self._last: dict[Hashable, tuple[Hashable, float]] = {}

    def feed(
        self, label: str, source: Hashable, process: Hashable, value: float, *, at_first: bool = False
    ) -> None:
        """Add the increase of ``source``, which now reports ``value``, to the total of ``label``.

        The increase is computed only if the last value came from the same ``process``. ``at_first``: the
        first value of a new source or process is added in full, because it started at 0; otherwise it adds
        nothing.
        """
        before, last = self._last.get(source, (None, 0.0))
        known = source in self._last and before == process
        grown = value - last if known else value if at_first else 0.0
        self._last[source] = process, value
        self.values[label] = self.values.get(label, 0.0) + max(grown, 0.0)

    def forget(self, label: str) -> None:
        """Remove the total of ``label``."""
        self.values.pop(label, None)

    @property
    def sources(self) -> set[Any]:
        """All known sources."""
        return set(self._last)

    def keep(self, sources: set[Hashable]) -> None:
        """Forget all other sources."""
        self._last = {source: said for source, said in self._last.items() if source in sources}


#: Limits on the series that names can create: Prometheus stores each for its whole retention time.
TOPICS_MAX, APPS_MAX, CONSUMERS_MAX = 1_000, 200, 1_000

Value = float | HistogramReport
#: Metric name, and label values in the order of the table.
Key = tuple[str, tuple[str, ...]]
Sample = tuple[Key, Value]

HISTOGRAMS = {
    "driver_stall": "escrowmq_replica_driver_stall_seconds",
    "fsync": "escrowmq_replica_fsync_seconds",
    "snapshot": "escrowmq_replica_snapshot_seconds",
    "prepare": "escrowmq_transactions_prepare_seconds",
    "commit": "escrowmq_transactions_commit_seconds",
    "lateness": "escrowmq_delayed_lateness_seconds",
    "find_build": "escrowmq_find_build_seconds",
}
#: The counters of a feedback process, and the ``result`` label that each becomes.
CHECK_RESULTS = {
    "answered_COMMITTED": "committed",
    "answered_ROLLBACK": "rollback",
    "answered_UNKNOWN": "unknown",
    "checks_returned": "returned",
    "parked": "parked",
}


class Series:
    """The series of one cluster. Not thread-safe."""

    def __init__(
        self, *, topics_max: int = TOPICS_MAX, apps_max: int = APPS_MAX, consumers_max: int = CONSUMERS_MAX
    ) -> None:
        self._topics, self._apps = Names("topic", topics_max), Names("app", apps_max)
        self._consumers = Names("consumer_group", consumers_max)
        self._messages, self._bytes, self._changes = Totals(), Totals(), Totals()

    def of(self, found: Found) -> dict[Key, Value]:
        """All series of one look."""
        series: dict[Key, Value] = {}
        for (name, labels), value in self._samples(found):
            metric = BY_NAME[name]
            assert len(metric.labels) == len(labels), (name, labels)
            before = series.get((name, labels), 0.0)  # several names may share the value OTHER
            series[name, labels] = value if isinstance(value, HistogramReport) else value + _number(before)
        return series

    def _samples(self, found: Found) -> Iterator[Sample]:
        for gid in found.members:
            yield from self._group(found, gid)
        for (gid, rid), told in found.metrics.items():
            yield from _replica_counters((str(gid), str(rid)), told)
        yield from self._topic_totals(found)
        yield from self._lags(found)
        yield from _feedback(found)
        yield ("escrowmq_supervisor_up", ()), float(found.supervisor)
        yield ("escrowmq_exporter_last_look_timestamp_seconds", ()), found.at
        yield ("escrowmq_exporter_look_seconds", ()), found.took_s
        for names in (self._topics, self._apps, self._consumers):
            names.tidy(found.at)
            yield ("escrowmq_exporter_names_limited", (names.label,)), float(names.limited)

    # -------------------------------------------------------------- groups and replicas

    def _group(self, found: Found, gid: int) -> Iterator[Sample]:
        members, label, leader = found.members[gid], (str(gid),), found.leader(gid)
        learning = [rid for rid in members.voters if (r := found.reports.get((gid, rid))) and r.learner]
        running = [rid for rid in members.voters if found.runs((gid, rid)) and rid not in learning]
        yield ("escrowmq_group_has_leader", label), float(leader is not None)
        yield ("escrowmq_group_voters", label), len(members.voters)
        yield ("escrowmq_group_spare_replicas", label), len(running) - (len(members.voters) // 2 + 1)
        for rid in members.all:
            yield from _replica(found, gid, rid)
            told = found.metrics.get((gid, rid))
            if told is not None:
                self._changes.feed(label[0], (gid, rid), told.pid, told.terms_led, at_first=True)
        yield ("escrowmq_group_leader_changes_total", label), self._changes.values.get(label[0], 0.0)
        led = None if leader is None else found.metrics.get((gid, leader.rid))
        if led is not None and led.led is not None:
            yield ("escrowmq_transactions_oldest_age_seconds", label), led.led.oldest_age_s
            yield ("escrowmq_checks_overdue", label), led.led.overdue.count
            yield ("escrowmq_checks_overdue_oldest_seconds", label), led.led.overdue.oldest_ms / 1000
            yield ("escrowmq_delayed_waiting", label), led.led.delayed
            yield ("escrowmq_delayed_bytes", label), led.led.delayed_bytes
            yield ("escrowmq_delayed_pinned_bytes", label), led.led.pinned_bytes
            pairs, ranges = led.led.shares
            yield ("escrowmq_share_partitions", label), pairs
            yield ("escrowmq_share_ranges", label), ranges
            yield from self._open(label[0], led.led.apps, found.at)

    def _open(self, group: str, apps: Named, now: float) -> Iterator[Sample]:
        rows = sorted(zip(apps.names, *apps.columns, strict=True), key=itemgetter(1), reverse=True)
        for name, opened, parked in [*rows, (OTHER, *apps.rest)]:
            if opened or parked:
                app = OTHER if name == OTHER else self._apps.label_of(name, now)
            elif self._apps.has(name):
                app = name  # does not count as seeing it: thousands of idle apps must not keep others out
            else:
                continue
            yield ("escrowmq_transactions_open", (group, app)), opened
            yield ("escrowmq_transactions_parked", (group, app)), parked
        if apps.all > len(apps.names):
            self._apps.sent_away(now)

    # -------------------------------------------------------------- topics and consumers

    def _topic_totals(self, found: Found) -> Iterator[Sample]:
        sources: set[Hashable] = set()
        for gid in found.members:
            leader = found.leader(gid)
            told = None if leader is None else found.metrics.get((gid, leader.rid))
            if told is None or told.led is None:
                sources |= {source for source in self._messages.sources if source[0] == gid}
            else:
                sources |= self._feed_topics(gid, told, told.led.topics, found.at)
        for totals in (self._messages, self._bytes):
            totals.keep(sources)
        for topic in self._topics.tidy(found.at):
            self._messages.forget(topic)
            self._bytes.forget(topic)
        for topic, total in self._messages.values.items():
            yield ("escrowmq_topic_messages_total", (topic,)), total
        for topic, total in self._bytes.values.items():
            yield ("escrowmq_topic_bytes_total", (topic,)), total

    def _feed_topics(self, gid: int, told: MetricsReport, topics: Named, now: float) -> set[Hashable]:
        sources: set[Hashable] = set()
        rows: Iterable[tuple[str | None, int, int]] = zip(topics.names, *topics.columns, strict=True)
        if topics.all > len(topics.names):
            self._topics.sent_away(now)
            rows = [*rows, (None, *topics.rest)]  # type: ignore[list-item]
        for name, messages, size in rows:
            label = OTHER if name is None else self._topics.label_of(name, now)
            source = gid, name
            sources.add(source)
            # The count of messages is replicated state, the same in all replicas; bytes are counted by each
            # process from its start.
            self._messages.feed(label, source, "the state", messages, at_first=label != OTHER)
            self._bytes.feed(label, source, (told.rid, told.pid), size)
        return sources

    def _lags(self, found: Found) -> Iterator[Sample]:
        if found.lag_limited:
            self._consumers.sent_away(found.at)
        for (group, topic), lag in found.lag.items():
            shown = self._consumers.label_of(f"{group}/{topic}", found.at) != OTHER
            yield ("escrowmq_consumer_lag", (group, topic) if shown else (OTHER, OTHER)), lag
        for gid, at in found.lag_at.items():
            yield ("escrowmq_exporter_lag_timestamp_seconds", (str(gid),)), at
        for group, counts in found.shares.items():
            label = (self._consumers.label_of(group, found.at),)
            for name, count in zip(("share_leased", "share_retrying", "dead_letters"), counts, strict=True):
                yield (f"escrowmq_{name}", label), count


def _number(value: Value) -> float:
    assert not isinstance(value, HistogramReport)
    return value


def _replica(found: Found, gid: int, rid: int) -> Iterator[Sample]:
    label, report = (str(gid), str(rid)), found.reports.get((gid, rid))
    runs = found.runs((gid, rid))
    yield ("escrowmq_replica_up", label), float(runs)
    if report is None or not runs:
        return
    for name, value in (
        ("commit_index", report.commit_index),
        ("applied_index", report.applied_index),
        ("durable_index", report.durable_index),
        ("learner", report.learner),
        ("incarnation", report.incarnation),
        ("log_bytes", report.log_bytes),
        ("disk_free_bytes", report.free_bytes),
    ):
        yield (f"escrowmq_replica_{name}", label), float(value)


def _replica_counters(label: tuple[str, str], told: MetricsReport) -> Iterator[Sample]:
    yield ("escrowmq_replica_link_connects_total", label), told.link_connects
    yield ("escrowmq_replica_clients", label), told.clients
    yield ("escrowmq_replica_client_requests_total", label), told.client_requests
    yield ("escrowmq_replica_client_unread_bytes", label), told.client_unread_bytes
    yield ("escrowmq_replica_clients_cut_total", label), told.clients_cut
    yield ("escrowmq_replica_disk_size_bytes", label), told.disk_bytes
    yield ("escrowmq_transactions_prepared_total", label), told.prepared
    yield ("escrowmq_delayed_released_total", label), told.released
    yield ("escrowmq_delayed_cancelled_total", label), told.cancelled
    yield ("escrowmq_replica_run_files", label), told.run_files
    yield ("escrowmq_replica_stored_descriptors", label), told.stored_descriptors
    yield ("escrowmq_delayed_carried_entries_total", label), told.carried.entries
    yield ("escrowmq_delayed_carried_total", label), told.carried.messages
    yield ("escrowmq_delayed_carried_bytes_total", label), told.carried.bytes
    yield ("escrowmq_find_cache_bytes", label), told.find.bytes
    yield ("escrowmq_find_cache_files", label), told.find.files
    yield ("escrowmq_find_memory_bytes", label), told.find.memory_bytes
    yield ("escrowmq_find_lookups_total", (*label, "hit")), told.find.hits
    yield ("escrowmq_find_lookups_total", (*label, "miss")), told.find.misses
    yield ("escrowmq_find_damaged_total", label), told.find.damaged
    for became, count in told.forwarded.items():
        yield ("escrowmq_share_forwarded_total", (*label, became)), count
    for decided, count in told.decided.items():
        outcome, _, by = decided.partition("/")
        yield ("escrowmq_transactions_decided_total", (*label, outcome.lower(), by)), count
    for reason, count in told.refused.items():
        yield ("escrowmq_refused_total", (*label, reason)), count
    for name, histogram in told.histograms.items():
        if name in HISTOGRAMS:  # a broker of a later version may have others
            yield (HISTOGRAMS[name], label), histogram


def _feedback(found: Found) -> Iterator[Sample]:
    for number, report in enumerate(found.feedback):
        process = str(number)
        yield ("escrowmq_feedback_process_up", (process,)), float(report is not None)
        if report is not None:
            yield ("escrowmq_producers_online", (process,)), report.producers
            for counted, result in CHECK_RESULTS.items():
                yield ("escrowmq_checks_total", (process, result)), report.counts.get(counted, 0)
