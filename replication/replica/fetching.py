"""Reading committed messages: partition index -> positions in the log -> bytes. Any replica, any thread.

Returns whole runs: the first may start before the requested offset and the client trims it, as a Kafka
client trims a batch. Adjacent runs of one entry are read together. Bodies are never decoded. One call
sees one moment: the ends of its partitions are read between two commits, never in the middle of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from escrowmq.replication.errors import OffsetGone
from escrowmq.replication.model import ResultCode
from escrowmq.replication.state.index import PartitionIndex, Run
from escrowmq.replication.state.machine import StateMachine
from escrowmq.replication.state.topics import Partition

#: Runs looked up per partition and call: bounds the work of one call over many tiny runs.
RUNS_MAX = 4_096

#: Maximum size of one answer, whatever its caller asks for: it is assembled in this process's memory.
FETCH_BYTES_MAX = 64 << 20
FETCH_ENDS_MAX = 64

#: Topic, partition, offset; a caller that reads a range adds its end, and gets no run that begins at or after
#: it, and the id of the topic that it means, and gets nothing of another topic of that name.
FetchRequest = tuple[str, int, int] | tuple[str, int, int, int] | tuple[str, int, int, int, int]
FetchResult = tuple[str, int, int, int, int, list[tuple[int, int, int, int]], bytes | memoryview]
#: Joins parts whose total size is given. A caller with many large answers reuses memory for them.
Join = Callable[[Iterable[bytes], int], bytes | memoryview]


def in_bytes(parts: Iterable[bytes], size: int) -> bytes:
    """The plain ``Join``: into a new bytes object."""
    return b"".join(parts)


class RangeReader(Protocol):
    """What fetching needs from the journal. Thread-safe."""

    def read_range(self, index: int, pos: int, size: int) -> bytes: ...


def fetch(
    state: StateMachine,
    log: RangeReader,
    requests: Sequence[FetchRequest],
    max_bytes: int,
    join: Join = in_bytes,
) -> list[FetchResult]:
    """``(topic, partition, code, log start, end, [(base, count, ts_ms, bytes), ...], blob)`` per request.

    With OTHER_TOPIC, log start and end are the id that the topic of that name has here.
    ``max_bytes`` bounds the whole answer, except that every partition with data gives at least one run.
    """
    results: list[FetchResult] = []
    left = max_bytes
    found = [state.topics.find(request[0], request[1]) for request in requests]
    with state.cut:
        ends = [partition.index.end if isinstance(partition, Partition) else 0 for partition in found]
    for (topic, number, offset, *more), partition, end in zip(requests, found, ends, strict=True):
        if not isinstance(partition, Partition):
            results.append((topic, number, int(partition), 0, 0, [], b""))
            continue
        if len(more) > 1 and partition.topic_id != more[1]:
            here = partition.topic_id
            results.append((topic, number, int(ResultCode.OTHER_TOPIC), here, here, [], b""))
            continue
        bounds = offset, end, more[0] if more else end
        result = _fetch_partition(partition, log, bounds, max(left, 1), join)
        left -= len(result[6])
        results.append(result)
    return results


def _fetch_partition(
    partition: Partition, log: RangeReader, bounds: tuple[int, int, int], max_bytes: int, join: Join
) -> FetchResult:
    (offset, end, until), index = bounds, partition.index
    topic, number, start = partition.topic, partition.number, index.start
    if not start <= offset <= end:
        return topic, number, int(ResultCode.OUT_OF_RANGE), start, end, [], b""
    runs = _runs_of_answer(index, offset, end, until, max_bytes)
    try:
        blob = join(read_runs(log, runs), sum(run.size for run in runs))
    except OffsetGone:  # retention overtook this read
        return topic, number, int(ResultCode.OUT_OF_RANGE), index.start, index.end, [], b""
    return topic, number, 0, start, end, [(r.base, r.messages, r.time_ms, r.size) for r in runs], blob


def _runs_of_answer(index: PartitionIndex, offset: int, end: int, until: int, max_bytes: int) -> list[Run]:
    runs = index.runs_from(offset, RUNS_MAX, max_bytes)
    # A run that a later commit has extended is left for the next fetch.
    return _within([r for r in runs if r.base + r.messages <= end and r.base < until], max_bytes)


def fetch_ends(
    state: StateMachine, topic: str, number: int, offset: int, until: int, max_bytes: int, count: int
) -> tuple[int, list[int]]:
    """``(code, offsets)``: where the next fetches would end, each starting where the previous one ended.

    At most ``count`` of them, and none after the first at ``until`` or later. For callers that pipeline
    fetches: without this, where a fetch ends is known only from its answer.
    """
    partition = state.topics.find(topic, number)
    if not isinstance(partition, Partition):
        return int(partition), []
    with state.cut:
        end = partition.index.end
    found: list[int] = []
    while len(found) < count and offset < until:
        runs = _runs_of_answer(partition.index, offset, end, until, max_bytes)
        if not runs:
            break
        offset = runs[-1].base + runs[-1].messages
        found.append(offset)
    return int(ResultCode.OK), found


def _within(runs: list[Run], max_bytes: int) -> list[Run]:
    total = 0
    for i, run in enumerate(runs):
        total += run.size
        if total > max_bytes and i > 0:
            return runs[:i]
    return runs


def read_runs(log: RangeReader, runs: Sequence[Run]) -> Iterator[bytes]:
    """The runs' rows, in parts; runs that are adjacent in the log are one read."""
    at = 0
    while at < len(runs):
        first = runs[at]
        size = first.size
        at += 1
        while at < len(runs) and runs[at].log_index == first.log_index and runs[at].pos == first.pos + size:
            size += runs[at].size
            at += 1
        yield log.read_range(first.log_index, first.pos, size)


def offset_for_time(state: StateMachine, topic: str, number: int, time_ms: int) -> tuple[int, int]:
    """``(code, offset)``: first offset at or after ``time_ms``; -1 = end, -2 = start."""
    partition = state.topics.find(topic, number)
    if not isinstance(partition, Partition):
        return int(partition), 0
    if time_ms == -1:
        return 0, partition.index.end
    if time_ms == -2:
        return 0, partition.index.start
    return 0, partition.index.offset_at_time(time_ms)
