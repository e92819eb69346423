"""A handler that a stop has interrupted has not failed: its record comes again as the same attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from escrowmq import Message, RetryPolicy
from escrowmq.testing import InMemoryCluster


class Stop(BaseException):
    """As a library's own, that is no failure: gevent's and trio's cancellations are such."""


STOPS = (SystemExit(143), KeyboardInterrupt(), Stop())


def consumer(cluster: InMemoryCluster, kind: str) -> Any:
    if kind == "shares":
        return cluster.share_consumer("g", ["t"], auto_offset_reset="earliest")
    order: Any = kind
    return cluster.consumer("g", ["t"], auto_offset_reset="earliest", retry=RetryPolicy(order=order))


def run(face: str, made: Any, handler: Callable[[Any], None]) -> None:
    if face == "threads":
        made.run(handler)
        return

    async def handle(record: Any) -> None:
        handler(record)

    asyncio.run(made.aio.run(handle))


@pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)
@pytest.mark.parametrize("face", ["threads", "asyncio"])
@pytest.mark.parametrize("kind", ["concurrent", "ordered", "shares"])
def test_a_stop_in_a_handler_costs_no_attempt(kind: str, face: str, stop: BaseException) -> None:
    with InMemoryCluster() as cluster:
        cluster.admin.create_topic("t")
        handled = list[bytes]()

        def handler(record: Any) -> None:
            if record.value == b"second":
                raise stop
            handled.append(record.value)

        with cluster.producer("app") as producer:
            for value in (b"first", b"second"):
                producer.send(Message("t", value, partition=0)).result(0)
        made = consumer(cluster, kind)
        cluster.admin.set_group("g", max_attempts=1)
        with pytest.raises(type(stop)):
            run(face, made, handler)
        made.close()
        assert cluster.admin.dead_letters("g") == [], "it was not its failure"
        again = consumer(cluster, kind).poll(timeout_s=60)
        assert [(record.value, record.attempt) for record in again] == [(b"second", 1)]
        assert handled == [b"first"], "what was handled before is committed"
