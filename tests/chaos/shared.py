"""The share group of a round, as the driver sees it: its settings, its rest, and what is left in the end."""

from __future__ import annotations

from collections import Counter

from escrowmq.actors.client.router import Router
from escrowmq.actors.consumer.offsets import OffsetReader
from escrowmq.actors.consumer.reader import PartitionReader
from escrowmq.replication.errors import Unavailable
from escrowmq.replication.format.codec import decode_rows
from escrowmq.replication.format.forwarded import history
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from tests.chaos.deployment import Deployment, until
from tests.chaos.sharer import DELAYS_MS, GROUP, LEASE_S, MAX_ATTEMPTS
from tests.history.events import Recorder, identify

#: All that fails has failed for the last time, and no lease of a client that died is left.
DRAINED_S = 120.0


def set_up(deployment: Deployment, recorder: Recorder) -> None:
    """The group's settings, before anybody uses it."""
    deployment.cluster.admin.set_group(
        GROUP, max_attempts=MAX_ATTEMPTS, delays_s=[ms / 1000 for ms in DELAYS_MS], lease_s=LEASE_S
    )
    op = recorder.invoke("share-group", group=GROUP)
    recorder.ok(op, max_attempts=MAX_ATTEMPTS, delays_ms=list(DELAYS_MS))


def settle(deployment: Deployment) -> None:
    """Wait until every message is done, or a dead letter. Raises Stuck."""

    def drained() -> bool:
        found = deployment.cluster.admin.describe_group(GROUP).share
        if found is None or not found.partitions or found.lag or found.leased or found.retrying:
            raise Unavailable(f"the share group has work left: {found}", 0.1)
        return True

    until("the share group is done with everything", drained, DRAINED_S)


def record_end(deployment: Deployment, recorder: Recorder, topics: dict[str, int]) -> Counter[str]:
    """What the group was given, and its retries and dead letters, for the history; returns figures."""
    info = deployment.info
    router = Router(info)
    offsets = OffsetReader(router)
    figures: Counter[str] = Counter()
    internal = {retry_topic(GROUP): "retry", dead_topic(GROUP): "dead"}
    places = [(topic, partition) for topic, count in topics.items() for partition in range(count)]
    places += [(topic, gid) for topic in internal for gid in range(info.groups)]
    try:
        bounds = offsets.bounds(places, 30.0)
        for topic, partition in places:
            where = bounds[topic, partition]
            assert not isinstance(where, Exception), where
            start, end = where
            of = internal.get(topic, "")
            records: list[list[int | str]] = []
            gid = router.placement.group_of(topic, partition)
            with PartitionReader(info, topic, partition, start, end, group=gid, timeout_s=15.0) as blocks:
                for block in blocks:
                    for n, (_, value, headers, _) in enumerate(decode_rows(block.rows, block.messages)):
                        attempt = [history(headers).attempt] if of else []
                        records.append([block.base_offset + n, identify(value), *attempt])
            op = recorder.invoke("share-end", group=GROUP, topic=topic, partition=partition)
            fields = {"topic": topic, "partition": partition, "start": end, "ranges": [], "end": end}
            recorder.ok(op, **fields, records=records, of=of)
            figures[f"{of or 'message'}s of the share group"] += len(records)
    finally:
        router.close()
    return figures
