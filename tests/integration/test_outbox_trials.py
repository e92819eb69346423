"""A part of ``make fence-trials`` that every test run has: relays of an outbox die before each step in turn,
and one stands still for longer than its lease, while a service goes on.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.fence_trials.parcels import Parcels
from tests.fence_trials.relaying import LEASE_S
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from escrowmq import Cluster


@pytest.mark.ray
def test_every_parcel_comes_once_and_in_order_whatever_happens_to_its_relays(
    cluster: Cluster, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    parcels = Parcels(cluster, engine, url, "outbox-trial", tmp_path / "log")
    try:
        for step in ("commit", "finish"):
            died = parcels.replace_relays(step)
            died()
        stopped = parcels.relays[0]
        stopped.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_S + 0.5)
        stopped.send_signal(signal.SIGCONT)
        parcels.replace_sender()
        before = len(parcels.stored())
        wait_until(lambda: len(parcels.stored()) > before + 5, 60, "more parcels", 0.05)
        assert parcels.problems() == [], (tmp_path / "log").read_text()[-3000:]
        assert set(parcels.died) == {"commit", "finish"}
    finally:
        parcels.end()
        engine.dispose()
