"""What the tests of Spark's sink work on without Spark: real brokers in this process, and a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from escrowmq.spark_integration.sink.intents import IntentStore
from escrowmq.spark_integration.sink.link import SinkLink
from tests.support.brokers import Brokers
from tests.support.sinking import PARTITIONS, linked


@pytest.fixture(scope="module", params=[1, 3])
def brokers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One group and three."""
    running = Brokers(tmp_path_factory.mktemp("brokers"), groups=request.param, replicas=1)
    yield running
    running.close()


@pytest.fixture
def query(request: pytest.FixtureRequest) -> str:
    return f"q-{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def topic(brokers: Brokers, query: str) -> str:
    brokers.topic(query, PARTITIONS)
    return query


@pytest.fixture
def link(brokers: Brokers, query: str) -> Iterator[SinkLink]:
    with linked(brokers, query) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path, query: str) -> IntentStore:
    (tmp_path / "metadata").write_text(json.dumps({"id": query}))
    (tmp_path / "commits").mkdir()
    return IntentStore(str(tmp_path))
