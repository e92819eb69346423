"""Shared by the client tests: one in-process cluster per module, for tests that leave it intact."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.actors.client.config import ChannelConfig
from escrowmq.actors.consumer.config import ConsumerConfig
from escrowmq.actors.consumer.consumer import Consumer
from escrowmq.actors.producer.config import ProducerConfig
from escrowmq.actors.producer.producer import Producer
from tests.support.brokers import Brokers, ClientCalls
from tests.support.producing import ProducerOf


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """One group of three replicas."""
    running = Brokers(tmp_path_factory.mktemp("brokers"))
    yield running
    running.close()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """``unique("orders")``: a name that no other test uses."""
    return lambda name: f"{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(request: pytest.FixtureRequest, brokers: Brokers, unique: Callable[[str], str]) -> str:
    """A new topic, with as many partitions as the module's ``PARTITIONS`` says, or one."""
    name = unique("orders")
    brokers.topic(name, getattr(request.module, "PARTITIONS", 1))
    return name


@pytest.fixture
def producer_of() -> Iterator[ProducerOf]:
    """``producer_of(brokers, app="shop", delivery_timeout_s=..., ...)``; closed at the end."""
    made: list[Producer] = []

    def make(brokers: Brokers, *, app: str = "shop", calls: Any = None, **settings: Any) -> Producer:
        channel = {k: settings.pop(k) for k in list(settings) if k in ChannelConfig.__slots__}
        config = ProducerConfig(**{"delivery_timeout_s": 10.0, **settings}, channel=ChannelConfig(**channel))
        made.append(Producer(brokers.info, app=app, config=config, calls=calls or ClientCalls(brokers)))
        return made[-1]

    yield make
    for producer in made:
        producer.close(2.0)


@pytest.fixture
def consumer_of() -> Iterator[Callable[..., Consumer]]:
    """``consumer_of(brokers, group=..., topics=..., config={...})``; closed at the end."""
    made: list[Consumer] = []

    def make(brokers: Brokers, *, config: dict[str, Any] | None = None, **options: Any) -> Consumer:
        settings = {"auto_offset_reset": "earliest", "heartbeat_interval_s": 0.2, "call_timeout_s": 10.0}
        consumer = Consumer(
            brokers.info,
            config=ConsumerConfig(**{**settings, **(config or {})}),
            calls=ClientCalls(brokers),
            **options,
        )
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close()


@pytest.fixture
def admin_of() -> Iterator[Callable[[Brokers], Admin]]:
    """``admin_of(brokers)``; closed at the end."""
    made: list[Admin] = []

    def make(brokers: Brokers) -> Admin:
        made.append(Admin(brokers.info, timeout_s=10.0, calls=ClientCalls(brokers)))
        return made[-1]

    yield make
    for admin in made:
        admin.close()
