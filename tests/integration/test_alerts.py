"""A real Prometheus and a real cluster: a follower is stopped; an alert is pending, fires, is resolved."""

from __future__ import annotations

import os
import signal
from urllib.request import urlopen

import pytest

from escrowmq import Cluster
from escrowmq.cluster.exporter.rules import rules
from tests.support.exporting import exporting
from tests.support.prometheus import scraping
from tests.support.waiting import wait_until

pytestmark = pytest.mark.ray

#: Ten minutes take two seconds.
SPEED = 300.0
ALERT = "EscrowMQNoSpareReplica"


def test_an_alert_is_pending_fires_and_is_gone(cluster: Cluster) -> None:
    replicas = cluster.status().groups[0].replicas
    follower = next(int(r.details["pid"]) for r in replicas if r.role == "follower")
    with exporting(cluster) as address, scraping(address, rules(SPEED)) as prometheus:

        def spare() -> str | None:
            found = prometheus.get("query?query=escrowmq_group_spare_replicas")["result"]
            return found[0]["value"][1] if found else None

        wait_until(lambda: spare() == "1", 30.0, "a scrape of a whole group")
        assert prometheus.state_of(ALERT) == ""
        os.kill(follower, signal.SIGSTOP)
        try:
            wait_until(lambda: prometheus.state_of(ALERT) == "pending", 30.0, "pending", 0.05)
            wait_until(lambda: prometheus.state_of(ALERT) == "firing", 30.0, "firing", 0.05)
            with urlopen(f"http://{address}/readyz", timeout=10) as answer:
                assert answer.read() == b"ok\n", "two of three lead on"
        finally:
            os.kill(follower, signal.SIGCONT)
        wait_until(lambda: prometheus.state_of(ALERT) == "", 30.0, "the alert's end", 0.05)
    wait_until(lambda: cluster.status().healthy, 20.0, "the shared cluster's health")
