"""The result of one look at the cluster, as plain values, so that code that uses it can be tested alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from escrowmq.actors.client.replica_calls import ShardReports
from escrowmq.replication.calling.answers import MembersReport, ReplicaReport
from escrowmq.replication.calling.metrics_report import MetricsReport

#: Group and number of a replica.
ReplicaKey = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a look that ended at ``at`` (seconds since the epoch) and took ``took_s``.

    ``members``: the members of each group in the newest configuration seen so far. ``reports`` and
    ``metrics`` lack replicas that did not answer in time.
    ``lag``: messages by consumer group and topic. ``shares``: for consumer groups with retries, the messages
    that are leased, that come again, and that are dead. ``lag_limited``: there are more consumer groups than
    were asked for. ``supervisor``: whether it answered. ``lag_at``: when the lag of all consumer groups that
    a broker group coordinates was last found, in seconds since the epoch.
    """

    at: float
    took_s: float
    members: Mapping[int, MembersReport]
    reports: Mapping[ReplicaKey, ReplicaReport] = field(default_factory=dict)
    metrics: Mapping[ReplicaKey, MetricsReport] = field(default_factory=dict)
    feedback: ShardReports = field(default_factory=list)
    lag: Mapping[tuple[str, str], int] = field(default_factory=dict)
    lag_limited: bool = False
    shares: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    supervisor: bool = False
    lag_at: Mapping[int, float] = field(default_factory=dict)

    def leader(self, gid: int) -> ReplicaReport | None:
        """The report of the replica that acts as the group's leader; of several, the one of highest term."""
        led: Sequence[ReplicaReport] = [r for (of, _), r in self.reports.items() if of == gid and r.ready]
        return max(led, key=lambda report: report.term, default=None)

    def runs(self, key: ReplicaKey) -> bool:
        """Whether the replica answered and is running."""
        report = self.reports.get(key)
        return report is not None and report.role in ("leader", "follower")
