"""One Ray and one EscrowMQ cluster for all integration tests of a run.

Starting Ray takes seconds and a cluster a few more, so both are session-scoped and shared: take topic, group
and app names from ``unique``, and leave the brokers as you found them. A test that kills a broker waits until
it is back; a test that stops something starts its own.
"""

from __future__ import annotations

import gc
import importlib.util
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.spark_modes import make_room
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from escrowmq import Cluster


@pytest.fixture(autouse=True)
def no_collection(request: pytest.FixtureRequest) -> Iterator[None]:
    """No garbage collection in the middle of a test with Spark: finalizers of Java's objects would write into
    the connection that the same thread is reading ("reentrant call", a defect of py4j), and it breaks."""
    if request.node.get_closest_marker("spark") is None:
        yield
        return
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


@pytest.fixture(scope="session")
def ray_local() -> Iterator[str]:
    """A running Ray with 8 logical CPUs that this process is connected to; yields its address."""
    import ray

    from escrowmq.cluster.ray_use import start_ray
    from escrowmq.cluster.settings import RaySettings
    from escrowmq.spark_integration import provide_java

    if importlib.util.find_spec("pyspark"):
        provide_java()  # Spark's executors find Java in the environment that Ray was started with
    # Not pytest's temporary directory: the paths of Ray's Unix sockets must be short.
    directory = Path(tempfile.mkdtemp(prefix="emq-", dir="/tmp"))
    address = start_ray(RaySettings(num_cpus=8, temp_dir=directory), namespace="escrowmq")
    yield address
    ray.shutdown()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(ray_local: str) -> Iterator[Cluster]:
    """One broker group of three replicas on ``ray_local``, in a temporary data directory."""
    import escrowmq

    with escrowmq.start_local(groups=1, replicas=3) as running:
        yield running
        make_room()


@pytest.fixture(params=["in-memory", pytest.param("real", marks=pytest.mark.ray)])
def face(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The public face, of a cluster in memory and of the real one: tests that speak only of it run against
    both, so that the two cannot disagree. Let time pass by ``tests.support.faces``."""
    if request.param == "real":
        yield request.getfixturevalue("cluster")
        return
    from escrowmq.testing import InMemoryCluster

    with InMemoryCluster() as in_memory:
        yield in_memory


@pytest.fixture(scope="module", autouse=True)
def room(request: pytest.FixtureRequest) -> None:
    """A module that does not share its Spark session starts without one."""
    if not hasattr(request.module, "shared"):
        make_room()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """``unique("orders")``: a name that no other test uses."""
    return lambda name: f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def healthy_again(cluster: Cluster) -> Iterator[None]:
    """The test leaves all replicas of the shared cluster healthy: a busy one may say so late, and a damaged
    one stays away."""
    yield
    wait_until(lambda: cluster.status().healthy, 20.0, "the shared cluster's health after the test")


@pytest.fixture
def topic(cluster: Cluster, unique: Callable[[str], str]) -> str:
    """A new topic with two partitions."""
    name = unique("topic")
    cluster.admin.create_topic(name, partitions=2)
    return name
