"""An order service with FastAPI: each order is a row and a message, and both are stored or neither is.

``AsyncFence`` ties SQLAlchemy's session to the producer's transaction, and answers the broker's checks after
a crash. The client chooses the order's id, which is the row's primary key, so it may repeat its request
after any answer.

Run it: ``python examples/fastapi_orders.py`` starts its own cluster. With RAY_ADDRESS it connects to the
cluster there; use that with ``uvicorn examples.fastapi_orders:app --workers 4``.

    curl -i -d '{"id": "7", "item": "teapot"}' -H 'content-type: application/json' localhost:8000/orders
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response, status
from pydantic import BaseModel, Field
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import escrowmq
from escrowmq import AsyncProducer, Cluster, Message, OutcomeUnknown
from escrowmq.integrations import AsyncFence, FenceLost, fence_table

APP = os.environ.get("ORDERS_APP", "shop")
TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
DATABASE = os.environ.get("ORDERS_DATABASE", "sqlite+aiosqlite:///shop.db")
#: Errors after which nothing was done: repeat the request.
AGAIN = (escrowmq.Unavailable, escrowmq.Overloaded, escrowmq.DiskFull, escrowmq.TooManyOpenTransactions)


class Base(DeclarativeBase):
    """The service's tables."""


fence_table(Base.metadata)  # in production, create both tables in a migration


class Order(Base):
    """An order as a row."""

    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str]


class NewOrder(BaseModel):
    """The body of a client's request."""

    id: Annotated[str, Field(min_length=1, max_length=100)]
    item: Annotated[str, Field(min_length=1, max_length=1000)]


@dataclass(frozen=True, slots=True)
class Shop:
    """The objects that all requests share: one producer and one engine for the whole process."""

    producer: AsyncProducer
    sessions: async_sessionmaker[AsyncSession]
    fence: AsyncFence


def open_cluster() -> Cluster:
    """Connects to the cluster at RAY_ADDRESS, or starts one."""
    return escrowmq.connect() if "RAY_ADDRESS" in os.environ else escrowmq.start_local()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Connects at start-up instead of on import, because a connection does not survive a fork."""
    engine = create_async_engine(DATABASE)
    try:
        async with engine.begin() as db:
            await db.run_sync(Base.metadata.create_all)
        sessions = async_sessionmaker(engine, expire_on_commit=False)
        fence = AsyncFence(sessions, app=APP)
        with open_cluster() as cluster:
            cluster.admin.create_topic(TOPIC, partitions=4)
            async with cluster.producer(app=APP, tx_status_querier=fence).aio as producer:
                app.state.shop = Shop(producer, sessions, fence)
                yield
    finally:
        await engine.dispose()


app = FastAPI(lifespan=lifespan)


async def the_shop(request: Request) -> Shop:
    """The shop of this process."""
    found: Shop = request.app.state.shop
    return found


@app.post("/orders", status_code=status.HTTP_201_CREATED)
async def place(order: NewOrder, shop: Annotated[Shop, Depends(the_shop)], response: Response) -> NewOrder:
    """201: stored now; 200: stored before; 202: unknown, ask for it or post it again; 503: post it again."""
    message = Message(TOPIC, order.model_dump_json().encode(), key=order.id.encode())
    try:
        async with shop.fence.transaction(shop.producer, message, query_id=order.id) as (_, db):
            db.add(Order(id=order.id, item=order.item))
            await db.flush()  # a duplicate is found here, while both can still be rolled back
    except IntegrityError:
        response.status_code = status.HTTP_200_OK
        return await look_up(order.id, shop)
    except OutcomeUnknown:  # the answer to one of the two commits was lost; the check decides
        response.status_code = status.HTTP_202_ACCEPTED
    except FenceLost as error:  # this process was paused for long; both are rolled back
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, str(error)) from error
    except AGAIN as error:
        wait = {"Retry-After": str(max(round(error.retry_after_s), 1))}
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, str(error), wait) from error
    except DBAPIError as error:  # the database refused it or is unreachable; both are rolled back
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, "the database is away") from error
    return order


@app.get("/orders/{order_id}")
async def look_up(order_id: str, shop: Annotated[Shop, Depends(the_shop)]) -> NewOrder:
    """The order as it is stored."""
    async with shop.sessions() as db:
        found = await db.get(Order, order_id)
    if found is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "no such order")
    return NewOrder(id=found.id, item=found.item)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=8000)
