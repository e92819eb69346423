"""Outboxes on engines, tables and contents that are out of the ordinary."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from escrowmq import Message
from escrowmq.feedback.database.errors import NoDatabaseTransaction
from escrowmq.feedback.database.outbox import Outbox
from escrowmq.feedback.database.relaying import Step
from tests.support.outboxes import drop, world_in
from tests.support.relays import World
from tests.support.shops import Shop


def test_a_relay_and_a_desk_in_autocommit_change_nothing(shop: Shop) -> None:
    """An engine in AUTOCOMMIT commits each statement on its own: half of a step would stay."""
    world = world_in(shop)
    world.send(Message("t", b"1"))
    engine = sa.create_engine(shop.url(), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    outbox = Outbox(engine, table=world.outbox.statements.table)
    with pytest.raises(NoDatabaseTransaction, match="AUTOCOMMIT"):
        World(outbox, world.connect, world.commit).relay().step()
    with pytest.raises(NoDatabaseTransaction, match="AUTOCOMMIT"):
        outbox.drop([outbox.rows()[0].id])
    assert world.relay().step() is Step.SENT
    drop(shop)
