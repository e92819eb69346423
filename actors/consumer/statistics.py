"""A consumer's counters and present state, updated per poll and per fetch, never per record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.statistics import RecentLatencies
from escrowmq.actors.consumer.positions import PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """Statistics of one consumer, for both interfaces together. Counters start at its creation. They are not
    all read at the same moment.

    ``records``: returned by ``poll``, including redeliveries. ``bytes``: fetched. ``fetches``: answered.
    ``fetches_failed``: ended in an error, or were abandoned for another replica. ``commits``: durable.
    ``assignments``: taken over by ``poll``. ``pauses``: of a partition, since what the handler needs was away
    (``pause_on`` of ``run``).

    ``fetches_in_flight``, ``buffered_bytes`` (of ``buffer_bytes_max``), ``buffer_fill``, ``nacked`` (records
    that wait for redelivery) and ``lag`` describe the present. ``lag``: by partition, the messages between
    ``position`` and the end reported by its last fetch; None before the first. ``pausing``: the partitions
    whose last record was put off so, and why. Latencies cover the last one
    to two minutes, accurate to within a quarter; None if there were none. Those of fetches count only fetches
    that brought messages, and include the wait at the broker.
    """

    group: str | None
    member: str | None
    records: int
    bytes: int
    fetches: int
    fetches_failed: int
    commits: int
    assignments: int
    pauses: int
    fetches_in_flight: int
    buffered_bytes: int
    buffer_bytes_max: int
    nacked: int
    lag: Mapping[TopicPartition, int | None]
    pausing: Mapping[TopicPartition, str]
    fetch_p50_s: float | None
    fetch_p99_s: float | None
    commit_p50_s: float | None
    commit_p99_s: float | None

    @property
    def buffer_fill(self) -> float:
        """The used share of the buffer, 0 to 1."""
        return self.buffered_bytes / self.buffer_bytes_max

    @property
    def lag_total(self) -> int:
        """The sum over all partitions whose lag is known."""
        return sum(lag for lag in self.lag.values() if lag is not None)


class Counted:
    """The counters behind ``ConsumerStatistics``. Each is written under one lock: the consumer's, or the
    committer's turn."""

    __slots__ = (
        "assignments",
        "bytes",
        "commit_latencies",
        "commits",
        "fetch_latencies",
        "fetches",
        "fetches_failed",
        "pauses",
        "records",
    )

    def __init__(self) -> None:
        self.records = self.bytes = self.fetches = self.fetches_failed = 0
        self.commits = self.assignments = self.pauses = 0
        self.fetch_latencies, self.commit_latencies = RecentLatencies(), RecentLatencies()

    def told(
        self,
        now: float,
        states: Sequence[PartitionState],
        *,
        group: str | None,
        member: str | None,
        fetches_in_flight: int,
        buffer_bytes_max: int,
        nacked: int,
    ) -> ConsumerStatistics:
        """The statistics at this time."""
        fetch = self.fetch_latencies.quantiles(now, 0.5, 0.99)
        commit = self.commit_latencies.quantiles(now, 0.5, 0.99)
        return ConsumerStatistics(
            group=group,
            member=member,
            records=self.records,
            bytes=self.bytes,
            fetches=self.fetches,
            fetches_failed=self.fetches_failed,
            commits=self.commits,
            assignments=self.assignments,
            pauses=self.pauses,
            fetches_in_flight=fetches_in_flight,
            buffered_bytes=sum(state.buffered for state in states),
            buffer_bytes_max=buffer_bytes_max,
            nacked=nacked,
            lag={state.tp: _lag_of(state) for state in states},
            pausing={state.tp: state.put_off for state in states if state.put_off},
            fetch_p50_s=fetch[0],
            fetch_p99_s=fetch[1],
            commit_p50_s=commit[0],
            commit_p99_s=commit[1],
        )

    def fetched(self, size: int, latency_s: float, now: float) -> None:
        """Counts an answered fetch of ``size`` bytes."""
        self.fetches += 1
        if size:
            self.bytes += size
            self.fetch_latencies.observe(latency_s, now)


def _lag_of(state: PartitionState) -> int | None:
    """The number of messages that exist and were not returned yet; None: unknown."""
    if state.position is None or state.log_start < 0:
        return None
    return max(state.log_end - state.position, 0)
