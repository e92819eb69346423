"""Drawn races of local transactions against checks, and the anomaly ``fence-split`` in what came of them."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from escrowmq import TransactionState
from escrowmq.integrations import FenceLost
from tests.support.shops import Shop


def splits(shop: Shop, seed: int, transactions: int = 12) -> list[str]:
    """Local transactions that are slow, fail or commit, while two instances are asked about each: a line for
    every answer that differs from what the database holds in the end. The broker carries out the answer."""
    said: list[tuple[str, TransactionState]] = []
    lock = threading.Lock()

    def local(tx_id: str) -> None:
        rng = random.Random(f"{seed}/{tx_id}/local")
        time.sleep(rng.uniform(0, 0.03))
        transaction = shop.begin()
        try:
            transaction.enter(tx_id).order(tx_id)
        except FenceLost:
            transaction.rollback()
            return
        time.sleep(rng.uniform(0, 0.02))
        (transaction.rollback if rng.random() < 0.3 else transaction.commit)()

    def ask(tx_id: str, instance: int) -> None:
        time.sleep(random.Random(f"{seed}/{tx_id}/{instance}").uniform(0, 0.04))
        state = shop.fence.query_status(tx_id, tx_id)
        with lock:
            said.append((tx_id, state))

    ids = [f"{seed}-{number}" for number in range(transactions)]
    with ThreadPoolExecutor(8) as pool:
        work = [pool.submit(local, tx_id) for tx_id in ids]
        work += [pool.submit(ask, tx_id, instance) for tx_id in ids for instance in (1, 2)]
        for done in work:
            done.result(timeout=60)
    stored = shop.stored()
    return [
        f"fence-split (seed {seed}): {tx_id} {'is' if tx_id in stored else 'is not'} in the database, and "
        "a check "
        f"was told {state.value}"
        for tx_id, state in said
        if state is not TransactionState.UNKNOWN
        and (state is TransactionState.COMMITTED) != (tx_id in stored)
    ]
