"""Client processes that offer work at a given rate, whether or not it succeeds: an open loop.

Each process has several producers; each producer is one client of the broker with its own calls. Refused
messages are not offered again, which is harder on the broker than clients that retry when told to. Through a
pipe, the parent sets the rate and collects counters, and at the end the ledger of every producer.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

import escrowmq
from benchmarks.load.offering import ClientPlan, offer_messages, offer_transactions
from benchmarks.load.tally import PLAIN, TRANSACTION, Tally, TimedCalls, Times
from escrowmq.actors.producer.producer import Producer


def run_clients(plan: ClientPlan, pipe: Connection) -> None:
    """The process. It receives orders through the pipe: ``("rate", per_s)``, ``("look",)``, ``("end",)``."""
    with escrowmq.connect(plan.address, plan.namespace) as cluster:
        config = escrowmq.ProducerConfig(
            buffer_bytes=plan.buffer_bytes,
            transaction_bytes_max=min(plan.buffer_bytes, 16 << 20),
            message_bytes_max=min(plan.buffer_bytes, 1 << 20),
            buffer_wait_s=plan.buffer_wait_s,
        )
        tally = Tally(plan.first_client, plan.producers, TRANSACTION if plan.transactional else PLAIN)
        producers = [
            Producer(
                cluster.info,
                app=f"load-{plan.first_client + n}",
                config=config,
                calls=TimedCalls(cluster.info, tally),
            )
            for n in range(plan.producers)
        ]
        rate = [0.0]
        ended = threading.Event()
        work = offer_transactions if plan.transactional else offer_messages
        thread = threading.Thread(target=work, args=(plan, producers, tally, rate, ended), daemon=True)
        thread.start()
        pipe.send("ready")
        while True:
            order, *rest = pipe.recv()
            if order == "rate":
                rate[0] = rest[0]
            elif order == "look":
                pipe.send(tally.take())
            else:
                break
        rate[0] = 0.0
        ended.set()
        thread.join()
        for producer in producers:
            producer.close()
        time.sleep(0.2)  # for the last callbacks
        ledgers = {
            plan.first_client + n: bytes(ledger[: tally.numbers[n]]) for n, ledger in enumerate(tally.ledgers)
        }
        pipe.send((tally.take(), ledgers))


class ClientProcess:
    """The parent's handle of one process."""

    def __init__(self, plan: ClientPlan) -> None:
        context = multiprocessing.get_context("spawn")
        self.plan = plan
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=run_clients, args=(plan, theirs), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        if not self._pipe.poll(timeout_s) or self._pipe.recv() != "ready":
            raise TimeoutError("a client process did not start")

    def set_rate(self, per_s: float) -> None:
        self._pipe.send(("rate", per_s))

    def look(self) -> tuple[Counter[str], Times]:
        self._pipe.send(("look",))
        counts, times = self._answer(60.0)
        return counts, times

    def end(self) -> tuple[tuple[Counter[str], Times], dict[int, bytes]]:
        self._pipe.send(("end",))
        last, ledgers = self._answer(180.0)
        self._process.join(30.0)
        return last, ledgers

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()

    def _answer(self, timeout_s: float) -> Any:
        if not self._pipe.poll(timeout_s):
            raise TimeoutError("a client process did not answer")
        return self._pipe.recv()
