"""A web service that takes orders, under FastAPI and uvicorn: ``python -m tests.fence_trials.shop JSON``.

It ends with its standard input. In turn they use ``Fence`` in the threads that FastAPI has for plain
functions, ``AsyncFence`` with psycopg's asyncio, and the latter with a deadline inside the producer's block,
which strikes whatever the database is doing. Some orders take a while, some are refused by the business.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI, Response
from sqlalchemy.ext.asyncio import create_async_engine

import escrowmq
from escrowmq import Cluster, Message
from escrowmq.integrations import AsyncFence, Fence

STORED, THERE, UNSURE, REFUSED, AWAY = 201, 200, 202, 422, 503
HOLD_S, SLOW, REFUSES = 0.2, 0.1, 0.03
TIMEOUT_S = 0.5  # to the first check
DEADLINE_S = 0.1
ORDERS = "orders"
KINDS = 3  # of services


class Refused(Exception):
    """The business says no."""


@dataclass(frozen=True, slots=True)
class Shop:
    """The settings of a service. ``number``: of its start."""

    address: str
    namespace: str
    url: str
    app: str
    topic: str
    port: int
    number: int

    def encode(self) -> str:
        return json.dumps(asdict(self))


class Taking:
    """What the two kinds of service share."""

    def __init__(self, told: Shop) -> None:
        self._told = told
        self._rng = random.Random(f"{told.app}/{told.number}")
        self.insert = sa.text(f"insert into {ORDERS} values (:id)")

    def message(self, order: str) -> Message:
        return Message(self._told.topic, order.encode(), key=order.encode())

    def hold_s(self) -> float:
        """How long the business takes. Raises Refused."""
        if self._rng.random() < REFUSES:
            raise Refused
        return HOLD_S * self._rng.random() if self._rng.random() < SLOW else 0.0

    @staticmethod
    def status(error: Exception) -> int:
        """What the customer is told."""
        if isinstance(error, Refused):
            return REFUSED
        if isinstance(error, sa.exc.IntegrityError):
            return THERE
        if isinstance(error, escrowmq.OutcomeUnknown | TimeoutError):
            return UNSURE
        if isinstance(error, escrowmq.EscrowMQError | sa.exc.SQLAlchemyError):
            return AWAY
        raise error


def blocking(told: Shop, cluster: Cluster) -> FastAPI:
    """With ``Fence``, in threads."""
    engine = sa.create_engine(told.url, pool_size=8, max_overflow=8)
    fence, taking = Fence(engine, app=told.app), Taking(told)
    producer = cluster.producer(app=told.app, tx_status_querier=fence)
    service = FastAPI()

    @service.post("/orders/{order}")
    def take(order: str) -> Response:
        try:
            with fence.transaction(
                producer, taking.message(order), query_id=order, transaction_timeout_s=TIMEOUT_S
            ) as (_, db):
                db.execute(taking.insert, {"id": order})
                time.sleep(taking.hold_s())
        except Exception as error:
            return Response(status_code=taking.status(error))
        return Response(status_code=STORED)

    return service


def asynchronous(told: Shop, cluster: Cluster) -> FastAPI:
    """With ``AsyncFence``, in tasks; every other one of them with deadlines."""
    engine = create_async_engine(told.url, pool_size=8, max_overflow=8)
    fence, taking = AsyncFence(engine, app=told.app), Taking(told)

    @asynccontextmanager
    async def lifespan(service: FastAPI) -> AsyncIterator[None]:
        async with cluster.producer(app=told.app, tx_status_querier=fence).aio as producer:
            service.state.producer = producer
            yield

    service = FastAPI(lifespan=lifespan)

    @asynccontextmanager
    async def fenced(order: str) -> AsyncIterator[Any]:
        producer, settings = service.state.producer, {"query_id": order, "transaction_timeout_s": TIMEOUT_S}
        if told.number % KINDS == 1:
            async with fence.transaction(producer, taking.message(order), **settings) as (_, db):
                yield db
            return
        async with producer.transaction(**settings) as tx:
            await tx.send(taking.message(order))
            await tx.prepare()
            async with asyncio.timeout(DEADLINE_S), fence.local(tx) as db:
                yield db

    @service.post("/orders/{order}")
    async def take(order: str) -> Response:
        try:
            async with fenced(order) as db:
                await db.execute(taking.insert, {"id": order})
                await asyncio.sleep(taking.hold_s())
        except Exception as error:
            return Response(status_code=taking.status(error))
        return Response(status_code=STORED)

    return service


def main() -> None:
    told = Shop(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_the_input, daemon=True).start()
    with escrowmq.connect(told.address, told.namespace) as cluster:
        make = asynchronous if told.number % KINDS else blocking
        uvicorn.run(make(told, cluster), host="127.0.0.1", port=told.port, log_level="warning")


def _end_with_the_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
