"""Asks the feedback processes for their reports through Ray.

A look-up waits for Ray's control store, so a separate thread asks, one question at a time; the caller limits
its own wait.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import ray

from escrowmq.actors.client.feedback_processes import ShardReports
from escrowmq.feedback.asking.shard_report import ShardReport
from escrowmq.feedback.names import shard_name


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
            first = ray.get_actor(shard_name(0), namespace=self._namespace)
        except ValueError:  # no such name
            return []
        report = _answers([_start(first)], wait_s)[0]
        others = range(1, 1 if report is None else report.shards)
        return [report, *_answers([self._start_at(number) for number in others], wait_s)]

    def _start_at(self, number: int) -> Any | None:
        try:
            return _start(ray.get_actor(shard_name(number), namespace=self._namespace))
        except ValueError:
            return None

    def close(self) -> None:
        """See :class:`FeedbackProcesses`."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _start(handle: Any) -> Any | None:
    try:
        return handle.report.remote()
    except AttributeError:  # an earlier version, which has no such call
        return None


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
