"""The benefit of fetching ahead: a reader of a range, without Spark, with one or more fetches in flight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.spark.rounds import Contest
from escrowmq.actors.client.ray_calls import RayCalls
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.format.codec import decode_rows

if TYPE_CHECKING:
    from benchmarks.spark.contests import Bench

IN_FLIGHT = (1, 2, 3, 5)


def body_prefetcher(bench: Bench, topic: str, rows: int, row_bytes: int) -> dict[str, Any]:
    """Read all partitions in sequence and decode every row, for each number of fetches in flight."""

    def contender(in_flight: int) -> Callable[[], None]:
        def run() -> None:
            found = 0
            for part in partitions:
                options: dict[str, Any] = {"in_flight": in_flight, "calls": calls}
                with PartitionReader(info, topic, part.partition, part.start, part.end, **options) as reader:
                    for runs, blob in reader.stretches():
                        found += len(decode_rows(blob, sum(run[1] for run in runs)))
            assert found == rows, f"{found} of {rows} rows were read"

        return run

    info = bench.cluster.info
    partitions = bench.cluster.admin.describe_topic(topic).partitions
    calls = RayCalls(info)
    try:
        contest = Contest(rows, row_bytes)
        names = {f"{number} under way": contender(number) for number in IN_FLIGHT}
        contest.run(names, bench.rounds, bench.pids, partial(_say, bench))
    finally:
        calls.close()
    return contest.figures(f"{IN_FLIGHT[0]} under way")


def _say(bench: Bench, text: str) -> None:
    bench.say(f"range reader: {text}")
