"""What a Spark session is refused for before anything is started."""

from __future__ import annotations

import socket

import pytest

from escrowmq.replication.errors import ClusterNotFound, ConfigError, Unavailable
from escrowmq.spark_integration.session.request import check_room, memory_bytes, session_request
from escrowmq.spark_integration.session.spark_session import spark_session

GIB = 1 << 30


def test_memory_is_read_as_spark_writes_it() -> None:
    assert [memory_bytes(text) for text in ("512m", "1g", "2GiB", "1048576k")] == [
        GIB // 2,
        GIB,
        2 * GIB,
        GIB,
    ]
    for text in ("", "much", "-1g", "100m", "1.5g"):
        with pytest.raises(ConfigError, match="memory"):
            memory_bytes(text)


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("mode", {"mode": "yarn"}),
        ("executors", {"executors": 0}),
        ("executors", {"executors": (0, 2)}),
        ("executors", {"executors": (3, 2)}),
        ("executors", {"executors": [1, 2]}),
        ("executors must be one number", {"executors": (1, 2), "mode": "local"}),
        ("start_timeout_s", {"start_timeout_s": 0}),
        ("cores", {"cores": True}),
        ("app_name", {"app_name": ""}),
        ("memory", {"memory": "all"}),
        ("address", {"address": "ray://127.0.0.1:10001"}),
        ("spark.master", {"configs": {"spark.master": "spark://127.0.0.1:1"}}),
        ("spark.master", {"configs": {"spark.master": "spark://127.0.0.1:1"}, "mode": "local"}),
        ("spark.master", {"configs": {"spark.master": "local[2]"}, "mode": "standalone"}),
    ],
)
def test_bad_settings_are_named(named: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=named):
        spark_session(**{"app_name": "x", "mode": "raydp", "address": "127.0.0.1:1", **options})  # type: ignore[arg-type]


def test_a_pair_of_sizes_becomes_spark_s_dynamic_allocation() -> None:
    request = session_request(
        "x",
        executors=(1, 3),
        cores=2,
        memory="1g",
        quick_start=False,
        configs={"spark.dynamicAllocation.executorIdleTimeout": "5s", "spark.ui.enabled": "true"},
        start_timeout_s=9,
    )
    assert (request.executors, request.most, request.memory_bytes) == (1, 3, GIB)
    dynamic = {k.rpartition(".")[2]: v for k, v in request.configs.items() if "dynamicAllocation" in k}
    assert dynamic == {
        "enabled": "true",
        "minExecutors": "1",
        "initialExecutors": "1",
        "maxExecutors": "3",
        "executorIdleTimeout": "5s",
    }
    assert request.configs["spark.dynamicAllocation.shuffleTracking.enabled"] == "true"
    assert request.configs["spark.sql.shuffle.partitions"] == "12", "two for each core at most"
    assert request.configs["spark.ui.enabled"] == "true", "what the caller says wins"


def test_too_few_cpus_or_too_little_memory_is_an_error_and_not_a_wait() -> None:
    def check(
        free: list[dict[str, float]], cores: int = 2, total: list[dict[str, float]] | None = None
    ) -> None:
        check_room(2, cores, GIB, free=free, total=total or [{"CPU": 4.0, "memory": 4.0 * GIB}])

    check([{"CPU": 4, "memory": 2 * GIB}])
    check([{"CPU": 2, "memory": GIB}, {"CPU": 3.5, "memory": GIB}])
    with pytest.raises(Unavailable, match=r"need 4 CPUs .* 3\.5 CPUs and 2048 MiB free"):
        check([{"CPU": 3.5, "memory": 2 * GIB}])
    with pytest.raises(Unavailable, match=r"2048 MiB of memory.* 1024 MiB free"):
        check([{"CPU": 4, "memory": GIB}])
    with pytest.raises(Unavailable, match=r"0 CPUs and 0 MiB free"):
        check([{}])
    with pytest.raises(ConfigError, match=r"cores=6: the largest Ray node has 4 CPUs"):
        check([{"CPU": 4, "memory": 2 * GIB}], cores=6)
    with pytest.raises(ConfigError, match=r"takes 1024 MiB, but the largest Ray node has 512 MiB"):
        check([], total=[{"CPU": 4.0, "memory": GIB / 2}])


def test_an_executor_fits_into_one_node_or_not_at_all() -> None:
    total = [{"CPU": 4.0, "memory": 4.0 * GIB}] * 4
    with pytest.raises(Unavailable, match=r"4 CPUs \(1 \+ 1 \+ 1 \+ 1 on 4 nodes\)"):
        check_room(2, 2, GIB, free=[{"CPU": 1.0, "memory": 4.0 * GIB}] * 4, total=total)


def test_no_ray_cluster_at_the_address_is_said_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ClusterNotFound, match=address):
            spark_session(mode="raydp", address=address)
