"""Questions that go through Ray's look-ups, with a time limit, and the one about a lost head.

Ray's own look-ups wait up to a minute for a lost head. So they run in a separate thread, and callers wait for
it no longer than their own time limit.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import ray

from escrowmq.actors.client.topology import broker_name
from escrowmq.cluster.settings import HOW_TO
from escrowmq.replication.errors import Unavailable

T = TypeVar("T")

#: A broker answers in milliseconds.
ANSWER_S = 1.0


def within(wait_s: float, address: str, ask: Callable[[], T]) -> T:
    """Run ``ask`` in a new thread; return or raise what it does. Raises Unavailable after ``wait_s``."""
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((ask(), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=run, name="escrowmq-discovery", daemon=True).start()
    try:
        answer, error = answers.get(timeout=wait_s)
    except queue.Empty:
        raise Unavailable(
            f"Ray's head at {address} has not answered for {wait_s:g} s: it was lost, or cannot be "
            f"reached from here; {HOW_TO}",
            5.0,
        ) from None
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # without an error it is a T


def head_waits(namespace: str, address: str, health: dict[str, Any]) -> dict[str, float]:
    """Node -> seconds that its processes wait for a lost Ray head. ``health``: the supervisor's. Raises
    Unavailable."""
    nodes = {(entry["group"], entry["replica"]): entry["node"] for entry in health["replicas"]}
    found = reconnect_waits(namespace, nodes, address)
    return {nodes[replica]: wait for replica, wait in found.items() if replica in nodes}


def reconnect_waits(
    namespace: str,
    replicas: Iterable[tuple[int, int]],
    address: str,
    wait_s: float = ANSWER_S,
) -> dict[tuple[int, int], float]:
    """(group, replica) -> seconds that the processes on its node wait for a lost Ray head.

    Contains only the replicas that answered within ``wait_s``.
    """

    def ask() -> dict[tuple[int, int], float]:
        calls: dict[Any, tuple[int, int]] = {}
        for gid, rid in replicas:
            with contextlib.suppress(ValueError):  # it has ended
                broker: Any = ray.get_actor(broker_name(gid, rid), namespace=namespace)
                calls[broker.about.remote()] = gid, rid
        done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=wait_s) if calls else ([], [])
        found = {}
        for call in done:
            try:
                found[calls[call]] = float(ray.get(call)["reconnect_s"])
            except ray.exceptions.RayError:
                continue
        return found

    return within(wait_s + 2.0, address, ask)
