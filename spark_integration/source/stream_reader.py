"""The streaming source: gives offsets to Spark's engine in one long-lived process, and reads in its tasks.

Spark stores the offsets (its checkpoint is the only state of a query) and decides when to run a batch. This
module reports how far messages are committed, and which ranges a batch consists of. Nothing is read beyond
what ``latestOffset`` has returned, and nothing between two offsets is left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from escrowmq.actors.client.consumer_groups import TopicPartition
from escrowmq.actors.client.router import Router, result_of
from escrowmq.replication.calling.answers import PartitionSpans
from escrowmq.replication.model import ResultCode
from escrowmq.spark_integration.ray_link import find_cluster
from escrowmq.spark_integration.source.heads import (
    IDLE_WAIT_S,
    PLAN_TIMEOUT_S,
    LeaderCatalog,
    SourceHeadWatch,
)
from escrowmq.spark_integration.source.options import SourceOptions, Subscription
from escrowmq.spark_integration.source.planning import Offsets, initial_offsets, listed, split
from escrowmq.spark_integration.source.reading import Split, TaskReader, splits
from escrowmq.spark_integration.source.stream_planning import (
    BatchDelay,
    Bounds,
    Heads,
    advance,
    batch,
    begin,
    from_json,
    lags,
    losses,
    require,
    share_out,
    to_json,
)

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class EscrowMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module's docstring. Spark calls it from one thread, and pickles it for ``read``."""

    def __init__(self, options: SourceOptions, tasks: TaskReader, link: Link | None = None) -> None:
        """``link``: the connection to use instead of a new one from the options; ``stop`` closes it."""
        self._options, self._tasks = options, tasks
        self._link = link
        self._initial: Offsets | None = None
        self._available_now = False
        self._target: Heads | None = None
        self._patience = BatchDelay(options.limits.min_offsets, options.limits.max_trigger_delay_s)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_link": None}  # tasks make their own connections

    # -------------------------------------------------------------- offsets

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint starts, according to the options."""
        here = self._here()
        catalog = LeaderCatalog(here.router, PLAN_TIMEOUT_S, self._options.subscription)
        self._initial = here.watch.patiently(lambda: initial_offsets(self._options, catalog))
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits. If Spark then passes ReadAllAvailable, the trigger (``Once``) wants all."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch. If there is nothing new, it waits a moment and returns ``start``."""
        offsets, _ = from_json(start)
        heads = self._heads(offsets)
        require(losses(offsets, heads), self._options.fail_on_data_loss)
        limited = self._options.limits.any and not isinstance(limit, ReadAllAvailable)
        waiting = lags(offsets, heads)
        total = sum(waiting.values())
        if limited and not self._available_now and self._patience.waits(total, time.monotonic()):
            time.sleep(IDLE_WAIT_S)
            return self._first(start, offsets, offsets)
        if not limited:
            return self._first(start, offsets, advance(offsets, heads, None))
        limits = self._options.limits
        if limits.max_bytes is not None and total:
            waiting, gone = self._here().within_bytes(offsets, heads, waiting, limits.max_bytes)
            heads = self._without(gone, heads)
        if limits.max_offsets is not None:
            waiting = share_out(waiting, limits.max_offsets, sum(offsets.values()))
        return self._first(start, offsets, advance(offsets, heads, waiting))

    def _first(self, start: dict[str, Any], offsets: Offsets, end: Offsets) -> dict[str, Any]:
        if offsets == self._initial:  # see stream_planning.INITIAL
            return to_json(end, self._initial)
        return start if end == offsets else to_json(end)

    def _heads(self, offsets: Offsets) -> Heads:
        watch = self._here().watch
        if self._available_now:
            # Determined only now, when the start is known: the target must not be before the start.
            if self._target is None:
                heads = watch.fresh()
                self._target = dict(watch.at_a_cut(offsets, heads) if self._options.at_a_cut else heads)
            return self._target
        if not watch.known:
            watch.fresh()
        heads = watch.news(lambda heads: advance(offsets, heads, None) != offsets)
        if self._options.at_a_cut and advance(offsets, heads, None) != offsets:
            return watch.at_a_cut(offsets, heads)
        return heads

    def _without(self, gone: Collection[TopicPartition], heads: Heads) -> Heads:
        """``heads`` without the partitions that were deleted meanwhile. Raises DataLoss."""
        if not gone:
            return heads
        require([f"{listed(sorted(gone))}: deleted"], self._options.fail_on_data_loss)
        left = {which: head for which, head in heads.items() if which not in gone}
        if self._available_now:
            self._target = left
        return left

    def prepareForTriggerAvailableNow(self) -> None:
        """Make this run end with what is committed at its first ``latestOffset``.

        Between this call and that one, Spark asks for the initial offset if it needs one.
        """
        self._available_now = True

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The present ends of the partitions, for the query's progress; see ``metrics.lag``."""
        known = self._here().watch.known
        return to_json({which: head.end for which, head in known.items()}) if known else None

    # -------------------------------------------------------------- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Split]:
        """The tasks of one batch. Raises DataLoss."""
        here = self._here()
        first, _ = from_json(start)
        last, initial = from_json(end)
        if initial is not None:
            first = (
                initial  # the first batch, perhaps after a restart, where ``start`` is a new initial offset
            )
        elif first == last:
            return []
        heads = here.watch.known or here.watch.fresh()
        planned = batch(first, last, heads)
        for what in require(planned.missing, self._options.fail_on_data_loss):
            log.warning("%s: skipped, since failOnDataLoss is false", what)
        options = self._options
        pieces = split(planned.ranges, options.min_partitions, options.max_records_per_partition)
        # A replica that lags may have an earlier topic of the name, with other messages at these offsets.
        return splits(here.router, pieces, here.watch.ids_now() if pieces else {})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of one split, in a task."""
        return self._tasks.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint stores the progress, and only retention removes messages."""

    def stop(self) -> None:
        """Close the connection; called at the query's end."""
        if self._link is not None:
            self._link.router.close()

    def _here(self) -> Link:
        if self._link is None:
            options = self._options
            info = find_cluster(options.address, options.namespace)
            self._link = Link(Router(info, name="escrowmq-spark"), options.subscription)
        return self._link


class Link:
    """A query's connection to the cluster."""

    def __init__(self, router: Router, subscription: Subscription) -> None:
        self.info, self.router = router.info, router
        self.watch = SourceHeadWatch(router, subscription)

    def within_bytes(
        self, offsets: Offsets, heads: Heads, waiting: Mapping[TopicPartition, int], max_bytes: int
    ) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
        """How many messages of each partition fit, by the brokers' indexes, and the partitions that no longer
        exist.

        It asks twice: first how many bytes each partition has (at most the limit), then how far its share of
        the limit reaches. If the next message of a partition is larger than its share, it is included alone.
        """
        starts = {which: begin(offsets, heads, which) for which, lag in waiting.items() if lag > 0}
        found = self.watch.patiently(lambda: self._spans(starts, heads, dict.fromkeys(starts, max_bytes)))
        shares = share_out({which: size for which, (_, size) in found.items()}, max_bytes)
        reached = self.watch.patiently(lambda: self._spans(starts, heads, shares))
        fits = {which: max(1, end - starts[which]) for which, (end, _) in reached.items()}
        return fits, starts.keys() - fits.keys()

    def _spans(
        self, starts: Offsets, heads: Mapping[TopicPartition, Bounds], bytes_max: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, bytes up to it) of each known partition, as far as its share of the bytes reaches."""
        by_group: dict[int, list[TopicPartition]] = {}
        for which in starts:
            by_group.setdefault(self.router.placement.group_of(*which), []).append(which)
        calls = {}
        for gid, members in by_group.items():
            asked = [(*m, starts[m], heads[m].end, bytes_max.get(m, 0)) for m in members]
            calls[gid] = self.router.leader_call(gid, "spans", asked, timeout_s=PLAN_TIMEOUT_S)
        found = {}
        for gid, members in by_group.items():
            answer: PartitionSpans = result_of(calls[gid], PLAN_TIMEOUT_S)
            for which, code, offset, size in zip(
                members, answer.codes, answer.offsets, answer.sizes, strict=True
            ):
                if code == ResultCode.OK:
                    found[which] = offset, size
        return found
