"""A little disk space is kept for decisions: they continue below the reserve, new work does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from escrowmq.actors.broker.config import BrokerConfig
from escrowmq.replication.format import ops
from tests.support.broker_group import BrokerGroup
from tests.support.requests import prepare


def test_open_transactions_are_decided_below_the_reserve_and_new_work_is_refused(tmp_path: Path) -> None:
    roomy = BrokerConfig(disk_reserve_bytes=0)
    with BrokerGroup(tmp_path, roomy) as trio:
        trio.topic()
        trio.submit(prepare(["kept", "dropped"]))
    with BrokerGroup(tmp_path, replace(roomy, disk_reserve_bytes=1 << 60)) as trio:
        assert trio.leader().parts.requests.submit(prepare(["more"]))[0] == "disk_full"
        assert trio.leader().parts.requests.submit(ops.create_topic("u", {"partitions": 1}))[0] == "disk_full"
        trio.submit(ops.commit("app", ["kept"]))
        trio.submit(ops.rollback("app", ["dropped"]))
        # In one request with new work they cannot be separated: all of it waits.
        requests = trio.leader().parts.requests
        assert requests.submit(ops.commit("app", ["kept"]) + prepare(["more"]))[0] == "disk_full"
        assert trio.leader().parts.reads.partition_bounds("t")[0] == (0, 1)
