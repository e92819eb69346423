"""A web service for uvicorn that connects when it starts: ``tests.integration.asgi_service:app``.

It connects to EMQ_ADDRESS; with EMQ_LOCAL=1 it starts its own cluster instead.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import escrowmq


def cluster() -> Any:
    if os.environ.get("EMQ_LOCAL"):
        return escrowmq.start_local(groups=1, replicas=1)
    return escrowmq.connect(os.environ["EMQ_ADDRESS"])


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Handles only the lifespan; there is nothing to serve."""
    assert scope["type"] == "lifespan"
    assert (await receive())["type"] == "lifespan.startup"
    running = cluster()
    await send({"type": "lifespan.startup.complete"})
    assert (await receive())["type"] == "lifespan.shutdown"
    running.close()
    print("closed in order", flush=True)
    await send({"type": "lifespan.shutdown.complete"})
