"""Calls to broker actors through Ray.

Never blocks: answers come through ``ref.future()`` callbacks, and separate threads look up names, since a
look-up waits for Ray's control store.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray

from escrowmq.actors.client.replica_calls import SUPERVISOR_RID, OnAnswer, ShardReports
from escrowmq.actors.client.topology import SUPERVISOR, ClusterInfo, broker_name
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.feedback.states import shard_name

#: A call to an actor that is bound to a dead node raises the second one, which is no RayActorError.
_LOST = (ray.exceptions.RayActorError, ray.exceptions.ActorUnschedulableError)


class RayCalls:
    """Calls to named Ray actors, whose handles are cached until they turn out dead."""

    def __init__(self, info: ClusterInfo) -> None:
        self._namespace = info.namespace
        self._methods: dict[tuple[int, int], dict[str, Any]] = {}
        self._lookups = ThreadPoolExecutor(2, thread_name_prefix="escrowmq-lookup")
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, int], list[tuple[str, tuple[Any, ...], OnAnswer]]] = {}
        self._closed = False

    def call(self, gid: int, rid: int, method: str, args: tuple[Any, ...], done: OnAnswer) -> None:
        """See :class:`ReplicaCalls`."""
        methods = self._methods.get((gid, rid))
        if methods is not None:
            self._start(gid, rid, methods, method, args, done)
            return
        with self._lock:
            if self._closed:
                return
            waiting = self._waiting.setdefault((gid, rid), [])
            waiting.append((method, args, done))
            if len(waiting) > 1:
                return
            try:
                self._lookups.submit(self._look_up, gid, rid)
                return
            except RuntimeError as error:  # the interpreter ends, or the system has no thread left
                failure = error
                del self._waiting[gid, rid]
        done(None, failure)

    def _start(
        self, gid: int, rid: int, methods: dict[str, Any], method: str, args: tuple[Any, ...], done: OnAnswer
    ) -> None:
        try:
            bound = methods.get(method)
            if bound is None:
                bound = methods[method] = getattr(methods[""], method)
            future = bound.remote(*args).future()
        except Exception as error:
            self._methods.pop((gid, rid), None)
            done(None, error)
            return

        def finished(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is None:
                done(answer.result(), None)
                return
            if isinstance(error, _LOST):  # dead, restarting, or its node is gone: look it up again
                self._methods.pop((gid, rid), None)
            done(None, error)

        future.add_done_callback(finished)

    def _look_up(self, gid: int, rid: int) -> None:
        methods: dict[str, Any] | None = None
        failure: BaseException | None = None
        try:
            name = SUPERVISOR if rid == SUPERVISOR_RID else broker_name(gid, rid)
            methods = {"": ray.get_actor(name, namespace=self._namespace)}
        except Exception as error:
            failure = error
        with self._lock:
            waiting = self._waiting.pop((gid, rid), [])
            if methods is not None:
                self._methods[gid, rid] = methods
        for method, args, done in waiting:
            if methods is None:
                done(None, failure)
            else:
                self._start(gid, rid, methods, method, args, done)

    def close(self) -> None:
        """See :class:`ReplicaCalls`."""
        with self._lock:
            self._closed = True
            self._waiting.clear()
        self._lookups.shutdown(wait=False, cancel_futures=True)


# ------------------------------------------------------------------------------------------------------------
# Asks the feedback processes for their reports through Ray.
#
# A look-up waits for Ray's control store, so a separate thread asks, one question at a time; the caller
# limits its own wait.


class RayFeedbackProcesses:
    """The feedback processes of one namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="escrowmq-feedback-status")
        self._asked: Future[ShardReports] | None = None

    def ask(self, wait_s: float) -> Future[ShardReports]:
        """See :class:`FeedbackProcesses`. While a question hangs, no second one is asked."""
        if self._asked is None or self._asked.done():
            self._asked = self._thread.submit(self._ask, wait_s)
        return self._asked

    def _ask(self, wait_s: float) -> ShardReports:
        try:
            first: Any = ray.get_actor(shard_name(0), namespace=self._namespace)
        except ValueError:  # no such name
            return []
        report = _answers([first.report.remote()], wait_s)[0]
        others = range(1, 1 if report is None else report.shards)
        return [report, *_answers([self._start_at(number) for number in others], wait_s)]

    def _start_at(self, number: int) -> Any | None:
        try:
            handle: Any = ray.get_actor(shard_name(number), namespace=self._namespace)
            return handle.report.remote()
        except ValueError:
            return None

    def close(self) -> None:
        """See :class:`FeedbackProcesses`."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _answers(calls: list[Any | None], wait_s: float) -> ShardReports:
    under_way = [call for call in calls if call is not None]
    ready = ray.wait(under_way, num_returns=len(under_way), timeout=wait_s)[0] if under_way else []
    return [_answer(call) if call in ready else None for call in calls]


def _answer(call: Any) -> ShardReport | None:
    try:
        report: ShardReport = ray.get(call, timeout=0)
        return report
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError):
        return None
