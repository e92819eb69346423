"""Ray at the edges of feedback: calls to brokers, and to feedback actors, as coroutines.

Handles are looked up by name, cached, and looked up again when Ray says that the actor is gone. A
look-up blocks, so it runs in a thread. Nothing here retries: Ray never does (``max_task_retries=0``),
and the callers know what is safe to repeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

from escrowmq.feedback.answering.topic_link import FeedbackLost
from escrowmq.feedback.brokers import BrokerUnreachable
from escrowmq.feedback.names import broker_name

log = logging.getLogger(__name__)


class RayBrokers:
    """``Brokers`` over named actors of one namespace. One event loop."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._handles: dict[tuple[int, int], Any] = {}
        self._looking: dict[tuple[int, int], asyncio.Task[Any]] = {}

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        """See ``Brokers``. An exception inside the broker is a bug there: logged, and no answer here."""
        if not ray.is_initialized():  # else Ray would start a cluster of its own for a look-up
            raise BrokerUnreachable("Ray was shut down in this process")
        handle = self._handles.get((gid, rid)) or await self._look_up(gid, rid)
        try:
            return await getattr(handle, method).remote(*args)
        except (RayActorError, ActorUnschedulableError) as error:  # the second: its node is dead
            self._handles.pop((gid, rid), None)
            raise BrokerUnreachable(f"{broker_name(gid, rid)} is gone or restarting") from error
        except RayError as error:
            log.error("%s failed in %s: %s", broker_name(gid, rid), method, error)
            raise BrokerUnreachable(f"{broker_name(gid, rid)} failed in {method}") from error

    async def _look_up(self, gid: int, rid: int) -> Any:
        """One look-up per replica at a time, however many calls wait for it."""
        key = (gid, rid)
        looking = self._looking.get(key)
        if looking is None:
            name = broker_name(gid, rid)
            looking = asyncio.ensure_future(asyncio.to_thread(ray.get_actor, name, self._namespace))
            self._looking[key] = looking
            looking.add_done_callback(lambda _: self._looking.pop(key, None))
        try:
            handle = await asyncio.shield(looking)
        except (ValueError, RayError) as error:
            raise BrokerUnreachable(f"no actor {broker_name(gid, rid)} in {self._namespace!r}") from error
        self._handles[key] = handle
        return handle


class RayFeedbackPort:
    """``FeedbackPort`` over a feedback actor's handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def poll(
        self, instance: str, room: int, working: Sequence[tuple[int, str, int]], wait_s: float
    ) -> tuple[str, Any]:
        """See ``TopicFeedback.poll``."""
        status, value = await _answer(self._handle.poll.remote(instance, room, working, wait_s))
        return status, value

    async def answer(
        self, instance: str, answers: Sequence[tuple[int, str, str, str, int]]
    ) -> tuple[str, Any]:
        """See ``TopicFeedback.answer``."""
        status, value = await _answer(self._handle.answer.remote(instance, answers))
        return status, value

    async def leave(self, instance: str, idle: bool = False) -> None:
        """See ``TopicFeedback.leave``."""
        await _answer(self._handle.leave.remote(instance, idle))


def connector(start: Callable[[str], Any]) -> Callable[[str], Awaitable[RayFeedbackPort]]:
    """``connect(topic)`` over ``start(topic)``, which finds or starts the actor and blocks meanwhile."""

    async def connect(topic: str) -> RayFeedbackPort:
        if not ray.is_initialized():
            raise FeedbackLost("Ray was shut down in this process")
        try:
            return RayFeedbackPort(await asyncio.to_thread(start, topic))
        except (RayError, ValueError, RuntimeError) as error:
            raise FeedbackLost(f"cannot find or start the feedback actor: {error}") from error

    return connect


async def _answer(ref: Any) -> Any:
    try:
        return await ref
    except RayError as error:
        raise FeedbackLost(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
