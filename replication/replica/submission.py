"""A client's request on its way through the leader's queue and the log: its operations, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from escrowmq.replication.format.codec import Op, OpType
from escrowmq.replication.state.machine import Result
from escrowmq.replication.state.topics import Topic


@dataclass(slots=True)
class Unit:
    """One client-visible operation: ``ops`` (a PREPARE with its PRE_MESSAGEs) at ``[start, end)``."""

    ops: Sequence[Op]
    start: int
    end: int


class LeftOut(NamedTuple):
    """A decision that went into the entry only in part. ``included``: the transactions that did;
    ``refused``: the reason for each other one that is open and stays open."""

    app: str
    outcome: int
    tx_ids: Sequence[str]
    included: set[str]
    refused: dict[str, tuple[int, Any]]
    across: bool


class Submission:
    """One client request on its way through the log."""

    __slots__ = ("done", "left_out", "results", "size", "tells_time", "units", "view")

    def __init__(self, request: bytes, ops: Sequence[Op], done: Callable[[tuple[Any, ...]], None]) -> None:
        self.view = memoryview(request)
        self.size = len(request)
        self.done = done
        self.units: list[Unit] = []
        #: Whether the answer tells the group's time: to clients that sent a PREPARE of version 2.
        self.tells_time = False
        at, start = 0, 0
        while at < len(ops):
            count = 1
            if ops[at].type == OpType.PREPARE:
                count += ops[at].meta[8]
                self.tells_time = self.tells_time or len(ops[at].meta) > 9
            last = ops[at + count - 1]
            end = last.body_pos + last.body_size
            self.units.append(Unit(ops[at : at + count], start, end))
            at, start = at + count, end
        self.results: list[Result | None] = [None] * len(self.units)
        self.left_out: dict[int, LeftOut] = {}  # by unit


class AboutTopics(Submission):
    """A request about ``topics`` as they were when it was checked, and about no later topics of these names:
    a request of the leader itself, or a consumer group's place, which belongs to the topic that was read."""

    __slots__ = ("topics",)

    def __init__(
        self,
        request: bytes,
        ops: Sequence[Op],
        topics: Mapping[str, Topic | None],
        done: Callable[[tuple[Any, ...]], None] = lambda status: None,
    ) -> None:
        super().__init__(request, ops, done)
        self.topics = topics
