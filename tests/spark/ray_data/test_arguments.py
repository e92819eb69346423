"""Bad arguments of ``read`` and ``write`` are refused before anything is asked of a cluster or of Ray."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest
import ray

from escrowmq import ray_data
from escrowmq.replication.errors import Closed, ConfigError, MessageTooLarge
from escrowmq.spark_integration.ray_data.datasink import Rewording, typed_cause
from escrowmq.spark_integration.sink.settling import resolve_write
from escrowmq.testing import InMemoryCluster


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"topic": ""}, "topic must be"),
        ({"topic": b"t"}, "topic must be"),
        ({"start": "beginning"}, "start must be 'earliest', 'latest'"),
        ({"start": datetime(2026, 1, 1)}, "start must be a datetime with a time zone"),
        ({"end": {0: -1}}, "end must map partitions to offsets"),
        ({"end": {"0": 1}}, "end must map partitions to offsets"),
        ({"partitions": "01"}, "partitions must be a list"),
        ({"partitions": []}, "partitions must be different numbers"),
        ({"partitions": [1, 1]}, "partitions must be different numbers"),
        ({"columns": "value"}, "columns must be a list"),
        ({"columns": []}, "columns must be a list"),
        ({"columns": ["value", "price"]}, r"no columns \['price'\]"),
        ({"columns": ["value", "value"]}, "one twice"),
        ({"parallelism": 0}, "parallelism must be"),
        ({"parallelism": True}, "parallelism must be"),
        ({"cluster": "127.0.0.1:6379"}, "cluster must be what"),
        ({"address": "ray://host:10001"}, "Ray Client"),
    ],
)
def test_read(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ray_data.read(**{"topic": "t", **arguments})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"topic": None}, "topic must be"),
        ({"value": None}, "value must be the name of a column"),
        ({"key": b"key"}, "key must be the name of a column"),
        ({"headers": ""}, "headers must be the name of a column"),
        ({"partition": 0}, "partition must be the name of a column"),
        ({"message_bytes_max": 5 << 20}, "message_bytes_max must be a whole number, 1 to 4194304"),
        ({"transaction_timeout_s": 0}, "transaction_timeout_s must be"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"compression": "gzip"}, "compression must be 'zstd', 'lz4' or None"),
        ({"compression": "lz4", "compression_level": 3}, "for compression='zstd' only"),
        ({"compression": "lz4", "compress_from": 0}, "compress_from must be"),
        ({"dataset": [1, 2]}, "needs a ray.data.Dataset"),
    ],
)
def test_write(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ray_data.write(**{"dataset": None, "topic": "t", **arguments})


def test_a_cluster_in_memory_has_no_ray() -> None:
    with InMemoryCluster() as cluster, pytest.raises(ConfigError, match="in memory has no Ray"):
        ray_data.read("t", cluster=cluster)
    with InMemoryCluster() as cluster, pytest.raises(ConfigError, match="not both"):
        ray_data.offsets("t", cluster=cluster, namespace="other")


def test_a_closed_cluster_is_not_asked() -> None:
    cluster = InMemoryCluster()
    cluster.close()
    cluster.address = "127.0.0.1:1"
    with pytest.raises(Closed):
        ray_data.read("t", cluster=cluster)


@pytest.mark.parametrize("missing", ["pandas", "pyarrow", "numpy"])
def test_without_the_packages_of_ray_data_it_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    for call in (lambda: ray_data.read("t"), lambda: ray_data.write(None, "t")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"pip install 'escrowmq\[ray-data\]'"):
            call()


def test_the_public_module_can_be_imported_without_them() -> None:
    code = (
        "import sys\nfor name in ('pandas', 'pyarrow', 'numpy', 'pyspark'): sys.modules[name] = None\n"
        "import escrowmq.ray_data"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_error_is_found_in_what_ray_made_of_it() -> None:
    error = MessageTooLarge(10, 5)
    wrapped = ray.exceptions.RayTaskError("f", "trace", error).as_instanceof_cause()
    outer = RuntimeError("Ray Data")
    outer.__cause__ = wrapped
    assert typed_cause(wrapped) is typed_cause(outer) is typed_cause(error) is error
    assert typed_cause(ValueError()) is None
    with pytest.raises(MessageTooLarge) as caught, Rewording("ray-data-1"):
        raise outer
    assert caught.value.__notes__ == ["the write's id is ray-data-1"]
    with pytest.raises(ValueError, match="theirs"), Rewording("ray-data-1"):
        raise ValueError("theirs")


def test_only_ids_of_writes_are_resolved() -> None:
    with pytest.raises(ConfigError, match="'ray-data-'"):
        resolve_write("q-1")
