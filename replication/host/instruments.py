"""Reads a replica's counters for the exporter. Nothing here runs in the driver's thread except one look
at the oldest transaction.

For apps and topics it reports the sums of all, and the names of a bounded number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from operator import itemgetter

from escrowmq.replication.calling.metrics_report import (
    CarryMetrics,
    HistogramReport,
    LedMetrics,
    MetricsReport,
    Named,
)
from escrowmq.replication.host.finding import Finder
from escrowmq.replication.host.inspection import politely
from escrowmq.replication.host.requests import RequestCounts
from escrowmq.replication.host.running_replica import RunningReplica
from escrowmq.replication.state.due_queue import overdue
from escrowmq.replication.state.transactions import STATE_OF

#: Names in one report: the apps with most open transactions, and the topics that were created first.
APPS_MAX = TOPICS_MAX = 1_000


class Instruments:
    """Counters of one replica. Thread-safe."""

    def __init__(self, running: RunningReplica, requests: RequestCounts, finder: Finder) -> None:
        self._running, self._requests, self._finder = running, requests, finder

    def metrics(self) -> MetricsReport:
        """The present values. Raises Closed, Overloaded, and TimeoutError if the driver does not answer."""
        running, replica, driver = self._running, self._running.replica, self._running.driver
        histograms = {
            "driver_stall": driver.stall_s,
            "fsync": driver.fsync_s,
            "snapshot": running.checkpointing.seconds,
            "prepare": self._requests.prepare_s(),
            "commit": self._requests.commit_s(),
            "lateness": replica.admission.releases.lateness_s,
            "find_build": self._finder.build_s,
        }
        carrying = replica.admission.carrying
        refused = self._requests.refused()
        refused["too_many_open"] += replica.admission.too_many_open
        return MetricsReport(
            gid=running.gid,
            rid=running.rid,
            terms_led=replica.terms_led,
            link_connects=driver.counters.connects,
            clients=0 if driver.door is None else driver.door.clients,
            client_requests=0 if driver.door is None else driver.door.requests,
            client_unread_bytes=0 if driver.door is None else driver.door.unread.bytes,
            clients_cut=0 if driver.door is None else driver.door.unread.cut,
            prepared=replica.led.prepared,
            decided={
                f"{STATE_OF[outcome].value}/{who}": count
                for (outcome, who), count in replica.led.decided.copy().items()
            },
            refused={reason: count for reason, count in refused.items() if count},
            histograms={name: HistogramReport.of(histogram) for name, histogram in histograms.items()},
            disk_bytes=running.room.size_bytes,
            released=replica.admission.releases.released,
            cancelled=replica.admission.releases.cancelled,
            forwarded={kind: count for kind, count in replica.admission.shares.counts.items() if count},
            run_files=running.checkpoints.run_files,
            stored_descriptors=running.checkpoints.files.descriptors,
            find=self._finder.report(),
            carried=CarryMetrics(carrying.entries, carrying.carried, carrying.carried_bytes),
            led=self._led() if running.node.ready else None,
        )

    def _led(self) -> LedMetrics:
        running, state = self._running, self._running.replica.state

        def oldest_ms() -> int | None:
            record = state.transactions.oldest()
            return None if record is None else record.prepared_ms

        prepared_ms = running.driver.call(oldest_ms)
        age_ms = 0 if prepared_ms is None else max(running.now_ms() - prepared_ms, 0)
        # Each list is made in one step of the interpreter: the driver's thread changes these maps meanwhile.
        apps = [
            (name, len(table.open), len(table.parked))
            for name, table in politely(list(state.transactions.apps.items()))
        ]
        topics = []
        for name, topic in politely(list(state.topics.topics.items())):
            messages = size = 0
            for partition in topic.partitions.values():  # a loop: two sums take three times as long
                index = partition.index
                messages += index.end
                size += index.bytes
            topics.append((name, messages, size))
        most = nlargest(APPS_MAX, apps, key=itemgetter(1)) if len(apps) > APPS_MAX else apps
        return LedMetrics(
            apps=_named(apps, most),
            topics=_named(topics, topics[:TOPICS_MAX]),
            oldest_age_s=age_ms / 1000,
            overdue=overdue(state.transactions, running.now_ms(), politely),
            delayed=state.timers.counts.total,
            delayed_bytes=state.timers.counts.total_bytes,
            pinned_bytes=running.replica.admission.carrying.pinned_bytes,
            shares=(len(state.shares.pairs), state.shares.ranges),
        )


def _named(rows: Sequence[tuple[str, int, int]], told: Iterable[tuple[str, int, int]]) -> Named:
    chosen = list(told)
    firsts, seconds = [row[1] for row in chosen], [row[2] for row in chosen]
    rest = [sum(row[1] for row in rows) - sum(firsts), sum(row[2] for row in rows) - sum(seconds)]
    return Named(names=[row[0] for row in chosen], columns=[firsts, seconds], rest=rest, all=len(rows))
