"""Outboxes in an application's database, and what is left in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.outbox_shards import OutboxShards
from tests.support.relays import Broker, World
from tests.support.shops import Shop


def outbox_in(shop: Shop, **options: Any) -> Outbox:
    made = Outbox(shop.connect if shop.plain else shop.engine, table=f"outbox_{shop.table}", **options)
    made.create_table()
    made.create_table()
    return made


def world_in(
    shop: Shop,
    broker: Broker | None = None,
    new_shards: Callable[..., OutboxShards] = OutboxShards,
    **options: Any,
) -> World:
    connect = shop.connect if shop.plain else shop.engine.connect
    return World(outbox_in(shop, **options), connect, lambda db: db.commit(), broker, new_shards)


def drop(shop: Shop) -> None:
    with shop.engine.begin() as db:
        db.execute(sa.text(f"drop table outbox_{shop.table}"))
        db.execute(sa.text(f"drop table outbox_{shop.table}_shards"))


def values(world: World) -> list[bytes]:
    return [message.value for message in world.broker.log]


def left(world: World) -> list[tuple[Any, ...]]:
    """State, attempts and error of the rows that are left."""
    statements = world.outbox.statements
    with world.outbox.database.opening() as (_, link):
        found = link.rows(f"select state, attempts, error from {statements.table} order by id")
    return [(state, attempts, error and bytes(error).decode()) for state, attempts, error in found]
