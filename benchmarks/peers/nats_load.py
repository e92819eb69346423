"""The load program of NATS JetStream, nats-py on uvloop: ``python -m benchmarks.peers.nats_load URL...``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import nats
import uvloop
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig

from benchmarks.peers.load_loop import bodies, serve

STREAMS = {256: "plain-256", 1024: "plain-1024"}
REPLICAS = 3
#: Published and not yet answered.
PENDING = 4000
#: How often it is looked at what has come.
POLL_S = 0.02
WAIT_S = 30.0
#: The loop does not run between rows, so pings are not answered then.
PING_S = 3600


class NatsLoad:
    """A connection to the leader of each stream, as a client of Kafka or EscrowMQ has, too."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._contexts: dict[int, Any] = {}

    async def connect(self) -> None:
        """Make the streams, and connect to their leaders."""
        first = await nats.connect(self._urls[0], ping_interval=PING_S)
        names = {}
        for url in self._urls:
            other = await nats.connect(url, ping_interval=PING_S)
            names[other._server_info["server_name"]] = url
            await other.close()
        for size, stream in STREAMS.items():
            config = StreamConfig(
                name=stream, subjects=[f"{stream}.*"], num_replicas=REPLICAS, storage=StorageType.FILE
            )
            leader = await self._made(first, config)
            connection = await nats.connect(names[leader], ping_interval=PING_S)
            self._contexts[size] = connection.jetstream(timeout=WAIT_S, publish_async_max_pending=PENDING)
        await first.close()

    @staticmethod
    async def _made(connection: Any, config: StreamConfig) -> str:
        """The leader of a new stream. Servers that have just met may not have elected a leader among them."""
        manager = connection.jetstream(timeout=5.0)
        for attempt in range(30):
            try:
                await manager.add_stream(config)
                info = await manager.stream_info(config.name)
                if info.cluster is not None and info.cluster.leader:
                    return str(info.cluster.leader)
            except Exception:
                if attempt == 29:
                    raise
            await asyncio.sleep(1.0)
        raise RuntimeError(f"stream {config.name} has no leader")

    async def plain(self, size: int, seconds: float) -> dict[str, Any]:
        """Without waiting for answers, at most ``PENDING`` of them open; the last ones are waited for."""
        source, context, stream = bodies(size), self._contexts[size], STREAMS[size]
        answers = []
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            for _ in range(256):
                key, value = next(source)
                answers.append(await context.publish_async(f"{stream}.{key.decode()}", value))
            await asyncio.sleep(0)  # lets answers in
        await asyncio.wait_for(asyncio.gather(*answers), WAIT_S)
        return {"items": len(answers), "seconds": time.perf_counter() - begin}

    async def reading(self, seconds: float) -> dict[str, Any]:
        """A new durable consumer reads from the start, and acknowledges all before once a second.

        The server pushes: with nats-py's ``fetch`` every message costs a timer of its own.
        """
        context, stream, name = self._contexts[256], STREAMS[256], f"reading-{time.time_ns()}"
        count, newest, first = 0, None, asyncio.Event()

        async def got(message: Any) -> None:
            nonlocal count, newest
            count, newest = count + 1, message
            first.set()

        config = ConsumerConfig(
            ack_policy=AckPolicy.ALL,
            deliver_policy=DeliverPolicy.ALL,
            max_ack_pending=-1,
            num_replicas=REPLICAS,
            flow_control=True,
            idle_heartbeat=5.0,
        )
        subject = f"{stream}.*"
        settings = {"stream": stream, "durable": name, "manual_ack": True, "config": config}
        subscription = await context.subscribe(subject, cb=got, **settings)
        await asyncio.wait_for(first.wait(), WAIT_S)
        before, begin = count, time.perf_counter()
        seen, moved, acknowledged = count, begin, begin
        while (now := time.perf_counter()) - begin < seconds and now - moved < 1.0:
            await asyncio.sleep(POLL_S)
            if count != seen:
                seen, moved = count, time.perf_counter()
            if newest is not None and now - acknowledged > 1:
                await newest.ack()
                acknowledged = now
        await subscription.unsubscribe()
        await context.delete_consumer(stream, name)
        return {"items": seen - before, "seconds": max(POLL_S, moved - begin)}

    async def lone(self, seconds: float) -> dict[str, Any]:
        """One message, and its answer."""
        source, context, stream, took = bodies(256), self._contexts[256], STREAMS[256], []
        begin = now = time.perf_counter()
        while now - begin < seconds:
            key, value = next(source)
            await context.publish(f"{stream}.{key.decode()}", value)
            took.append((after := time.perf_counter()) - now)
            now = after
        return {
            "items": len(took),
            "seconds": now - begin,
            "p50_ms": sorted(took)[(len(took) - 1) // 2] * 1000,
        }


def main() -> None:
    load = NatsLoad(sys.argv[1:])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(load.connect())

        def blocking(
            row: Callable[[float], Coroutine[Any, Any, dict[str, Any]]],
        ) -> Callable[[float], dict[str, Any]]:
            return lambda seconds: runner.run(row(seconds))

        serve(
            {
                "plain-256": blocking(partial(load.plain, 256)),
                "plain-1024": blocking(partial(load.plain, 1024)),
                "reading": blocking(load.reading),
                "lone-plain": blocking(load.lone),
            }
        )


if __name__ == "__main__":
    main()
