"""What a consumer has done so far, and how it stands: counted by poll and by fetch, never by record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.latencies import RecentLatencies
from escrowmq.actors.consumer.positions import PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatistics:
    """Of one consumer, both faces together. Counts are since it was made; each is of its own moment.

    ``records`` that ``poll`` has returned (redeliveries too), ``bytes`` that were fetched, ``fetches`` that
    were answered and ``fetches_failed`` that ended in an error or were given up for another replica,
    ``commits`` that are durable, ``assignments`` that were taken over.

    ``fetches_in_flight``, ``buffered_bytes`` (of ``buffer_bytes_max``), ``buffer_fill``, ``nacked`` (records
    that wait for their redelivery) and ``lag`` are of now. ``lag``: by partition, the messages between
    ``position`` and the end that its last fetch told; None until one has told it. Latencies are of the last
    one to two minutes, to within a quarter, None where there were none: of fetches that brought something,
    the waiting for it at the broker included, and of commits.
    """

    group: str | None
    member: str | None
    records: int
    bytes: int
    fetches: int
    fetches_failed: int
    commits: int
    assignments: int
    fetches_in_flight: int
    buffered_bytes: int
    buffer_bytes_max: int
    nacked: int
    lag: Mapping[TopicPartition, int | None]
    fetch_p50_s: float | None
    fetch_p99_s: float | None
    commit_p50_s: float | None
    commit_p99_s: float | None

    @property
    def buffer_fill(self) -> float:
        """From 0 to 1."""
        return self.buffered_bytes / self.buffer_bytes_max

    @property
    def lag_total(self) -> int:
        """Of all partitions whose lag is known."""
        return sum(lag for lag in self.lag.values() if lag is not None)


class Counted:
    """The counts behind it. Each is written under one lock: the consumer's, or the committer's turn."""

    __slots__ = (
        "assignments",
        "bytes",
        "commit_latencies",
        "commits",
        "fetch_latencies",
        "fetches",
        "fetches_failed",
        "records",
    )

    def __init__(self) -> None:
        self.records = self.bytes = self.fetches = self.fetches_failed = 0
        self.commits = self.assignments = 0
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
        """All of it."""
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
            fetches_in_flight=fetches_in_flight,
            buffered_bytes=sum(state.buffered for state in states),
            buffer_bytes_max=buffer_bytes_max,
            nacked=nacked,
            lag={state.tp: _lag_of(state) for state in states},
            fetch_p50_s=fetch[0],
            fetch_p99_s=fetch[1],
            commit_p50_s=commit[0],
            commit_p99_s=commit[1],
        )

    def fetched(self, size: int, latency_s: float, now: float) -> None:
        """A fetch was answered, with so many bytes."""
        self.fetches += 1
        if size:
            self.bytes += size
            self.fetch_latencies.observe(latency_s, now)


def _lag_of(state: PartitionState) -> int | None:
    """Messages that are there and were not returned yet; None: nobody knows."""
    if state.position is None or state.log_start < 0:
        return None
    return max(state.log_end - state.position, 0)
