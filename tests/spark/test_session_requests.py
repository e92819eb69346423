"""What a Spark session is refused for before anything is started."""

from __future__ import annotations

import socket

import pytest

from escrowmq.replication.errors import ClusterNotFound, ConfigError, Unavailable
from escrowmq.spark_integration.session import SessionRequest, check_room, memory_bytes, spark_session

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
        ("cores", {"cores": True}),
        ("app_name", {"app_name": ""}),
        ("memory", {"memory": "all"}),
        ("address", {"address": "ray://127.0.0.1:10001"}),
    ],
)
def test_bad_settings_are_named(named: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=named):
        spark_session(**{"app_name": "x", "mode": "raydp", "address": "127.0.0.1:1", **options})  # type: ignore[arg-type]


def test_too_few_cpus_or_too_little_memory_is_an_error_and_not_a_wait() -> None:
    two_of_two = SessionRequest("x", executors=2, cores=2, memory_bytes=GIB)
    check_room(two_of_two, {"CPU": 4, "memory": 2 * GIB}, [2.0, 2.0])
    with pytest.raises(Unavailable, match=r"need 4 CPUs .* 3\.5 free"):
        check_room(two_of_two, {"CPU": 3.5, "memory": 2 * GIB}, [2.0, 2.0])
    with pytest.raises(Unavailable, match=r"2048 MiB of memory"):
        check_room(two_of_two, {"CPU": 4, "memory": GIB}, [4.0])
    with pytest.raises(ConfigError, match=r"cores=2: the largest Ray node has 1 CPUs"):
        check_room(two_of_two, {"CPU": 4, "memory": 2 * GIB}, [1.0] * 4)


def test_no_ray_cluster_at_the_address_is_said_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ClusterNotFound, match=address):
            spark_session(mode="raydp", address=address)
