"""The table of all metrics: name, meaning, source, and the alerts and the panel that use it.

Names of metrics are defined only here, in ``tables/``, a file for each subject. The exporter refuses a
sample that is not listed, and the alert rules, the Grafana board and docs/metrics.md are generated from
this table (``make instruments``). Every label has a bounded number of values: broker groups, replicas and
reasons are few; of the names that applications choose a limited number is shown (``Names`` in series.py),
and all others count as "other".
"""

from __future__ import annotations

from escrowmq.cluster.exporter.metric import Metric
from escrowmq.cluster.exporter.tables.cluster_metrics import CLUSTER_METRICS
from escrowmq.cluster.exporter.tables.delayed_metrics import DELAYED_METRICS
from escrowmq.cluster.exporter.tables.find_metrics import FIND_METRICS
from escrowmq.cluster.exporter.tables.forward_metrics import FORWARD_METRICS
from escrowmq.cluster.exporter.tables.replica_metrics import REPLICA_METRICS
from escrowmq.cluster.exporter.tables.share_metrics import SHARE_METRICS
from escrowmq.cluster.exporter.tables.topic_metrics import TOPIC_METRICS
from escrowmq.cluster.exporter.tables.transaction_metrics import TRANSACTION_METRICS

METRICS: tuple[Metric, ...] = (
    *CLUSTER_METRICS, *REPLICA_METRICS, *TRANSACTION_METRICS, *TOPIC_METRICS, *DELAYED_METRICS,
    *SHARE_METRICS, *FORWARD_METRICS, *FIND_METRICS,
)  # fmt: skip
BY_NAME = {metric.name: metric for metric in METRICS}
