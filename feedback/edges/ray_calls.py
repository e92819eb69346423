"""Ray at the edges of feedback: calls to brokers, and to feedback processes, as coroutines.

Handles are looked up by name, cached, and looked up again when Ray says that the actor is gone. A
look-up blocks, so it runs in a thread. Nothing here retries: Ray never does (``max_task_retries=0``),
and the callers know what is safe to repeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError, RayError

from escrowmq.feedback.answering.shard_link import AskedCheck, FeedbackLost, GroupTopic
from escrowmq.feedback.brokers import BrokerUnreachable
from escrowmq.feedback.states import SUPERVISOR, broker_name
from escrowmq.replication.calling.answers import MembersReport

log = logging.getLogger(__name__)

#: The supervisor answers immediately, or is away.
MEMBERS_WAIT_S = 5.0


class RayBrokers:
    """``Brokers`` over named actors of one namespace. One event loop."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._handles: dict[tuple[int, int], Any] = {}
        self._looking: dict[tuple[int, int], asyncio.Task[Any]] = {}

    async def call(self, gid: int, rid: int, method: str, *args: Any) -> Any:
        """See ``Brokers``. An exception inside the broker is a bug there: logged, and no answer here."""
        if not ray.is_initialized():  # otherwise Ray would start its own cluster for a look-up
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

    async def members(self, gid: int) -> tuple[int, Sequence[int]] | None:
        """See ``AskMembers``: from the supervisor, which knows where all replicas are."""
        if not ray.is_initialized():
            return None
        try:
            supervisor: Any = await asyncio.to_thread(ray.get_actor, SUPERVISOR, self._namespace)
            call: Any = supervisor.members_of.remote(gid)
            found: MembersReport | None = await asyncio.wait_for(call, MEMBERS_WAIT_S)
        except (ValueError, RayError, TimeoutError) as error:
            log.info("the supervisor does not tell the members of group %d: %s", gid, error)
            return None
        return None if found is None else (found.version, found.all)

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
    """``FeedbackPort`` of one app over a feedback process's handle."""

    def __init__(self, handle: Any, app: str) -> None:
        self._handle, self._app = handle, app

    async def poll(
        self, instance: str, room: int, working: Sequence[AskedCheck], wait_s: float, fence: bytes
    ) -> tuple[str, Any]:
        """See ``FeedbackShard.poll``."""
        asked = self._app, instance, room, working, wait_s, fence
        status, value = await _answer(self._handle.poll.remote(*asked))
        return status, value

    async def answer(
        self, instance: str, answers: Sequence[tuple[GroupTopic, str, str, str, int]]
    ) -> tuple[str, Any]:
        """See ``FeedbackShard.answer``."""
        status, value = await _answer(self._handle.answer.remote(self._app, instance, answers))
        return status, value

    async def leave(self, instance: str, idle: bool = False) -> None:
        """See ``FeedbackShard.leave``."""
        await _answer(self._handle.leave.remote(self._app, instance, idle))


class RayShards:
    """The feedback processes, for one app. ``start(number, shards)`` finds or starts one and blocks.

    The number of processes is the one that process 0 was started with; ``wanted`` applies if there is none
    yet.
    """

    def __init__(self, app: str, wanted: int, start: Callable[[int, int], Any]) -> None:
        self._app, self._wanted, self._start = app, wanted, start
        self._count = wanted

    async def count(self) -> int:
        """The number of processes. Raises FeedbackLost."""
        _, self._count = await _answer((await self._find(0, self._wanted)).layout.remote())
        if self._count != self._wanted:
            log.info(
                "feedback runs in %d processes, not %d: feedback.shards applies from the next cluster start",
                self._count,
                self._wanted,
            )
        return self._count

    async def connect(self, number: int) -> RayFeedbackPort:
        """The process with this number. Raises FeedbackLost."""
        handle = await self._find(number, self._count)
        found = tuple(await _answer(handle.layout.remote()))
        if found != (number, self._count):
            log.error(
                "feedback process %d of %d is number %d of %d: restart the producers, or the cluster",
                *(number, self._count, *found),
            )
            raise FeedbackLost(f"feedback process {number} belongs to another number of processes")
        return RayFeedbackPort(handle, self._app)

    async def _find(self, number: int, shards: int) -> Any:
        if not ray.is_initialized():
            raise FeedbackLost("Ray was shut down in this process")
        try:
            return await asyncio.to_thread(self._start, number, shards)
        except (RayError, ValueError, RuntimeError) as error:
            raise FeedbackLost(f"cannot find or start feedback process {number}: {error}") from error


async def _answer(ref: Any) -> Any:
    try:
        return await ref
    except RayError as error:
        raise FeedbackLost(str(error).splitlines()[0] if str(error) else type(error).__name__) from error
