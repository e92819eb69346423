"""What has come of the inputs of groups that consume, transform, produce and nack (transforming.py).

- ``processed-twice``: an input has two outputs;
- ``output-and-letter``: an output and a dead letter;
- ``output-without-offset``: an input has an output, and the group is not behind it;
- ``offset-without-output``: the reverse, and it is no dead letter either: it was skipped;
- ``dead-early``: an input is a dead letter, and handlers have not failed for it often enough.

Members of the group with order "concurrent" commit their offsets behind their outputs: the last two count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from escrowmq.actors.client.consumer_groups import coordinator_group
from escrowmq.replication.format.internal_topics import dead_topic, retry_topic
from escrowmq.replication.state.machine import StateMachine
from tests.sim.clients.delayed_end import readable
from tests.sim.environment.world import Violation
from tests.sim.group.broker_app import BrokerApplication

if TYPE_CHECKING:
    from escrowmq.replication.state.topics import Partition
    from tests.sim.streams.transforming import TransformGroup

INPUT = "nack-in"


def coordinator(leaders: Sequence[BrokerApplication], group: TransformGroup) -> StateMachine:
    """The state that has the group's offsets."""
    return leaders[coordinator_group(group.name, len(leaders))].replica.state


def _partitions(
    leaders: Sequence[BrokerApplication], topic: str
) -> Iterator[tuple[BrokerApplication, int, Partition]]:
    for leader in leaders:
        known = leader.replica.state.topics.topics.get(topic)
        for number, partition in () if known is None else known.partitions.items():
            yield leader, number, partition


def left(leaders: Sequence[BrokerApplication], group: TransformGroup) -> int:
    """Messages that the group has not read, and retries that wait for their time."""
    committed, count = coordinator(leaders, group).group_offsets.get(group.name, {}), 0
    for topic in (INPUT, retry_topic(group.name)):
        for leader, number, partition in _partitions(leaders, topic):
            count += partition.index.end - max(committed.get(topic, {}).get(number, 0), 0)
            flat = leader.replica.state.timers.counts.flat()
            if topic != INPUT:
                count += sum(
                    n for slot, n in zip(flat[::4], flat[2::4], strict=True) if slot == partition.slot
                )
    return count


def _read(leaders: Sequence[BrokerApplication], topic: str) -> dict[int, list[str]] | None:
    """Ids by partition; None: a replica has ended."""
    found: dict[int, list[str]] = {}
    for leader, number, _ in _partitions(leaders, topic):
        rows = readable(leader, (topic, number))
        if rows is None:
            return None
        found[number] = [id for id, _ in rows]
    return found


def judge(leaders: Sequence[BrokerApplication], group: TransformGroup, attempts: int) -> bool:
    """Raise what is wrong; False: a replica has ended meanwhile."""
    read = [_read(leaders, topic) for topic in (INPUT, group.output, dead_topic(group.name))]
    inputs, made, dead = read
    if inputs is None or made is None or dead is None:
        return False
    outputs, letters = (Counter(id for ids in of.values() for id in ids) for of in (made, dead))
    committed = coordinator(leaders, group).group_offsets.get(group.name, {}).get(INPUT, {})
    exact = group.kind != "concurrent"
    for number, ids in sorted(inputs.items()):
        up_to = committed.get(number, 0)
        for offset, id in enumerate(ids):
            what = f"{id} at {INPUT}/{number}@{offset}, and {group.name} is at {up_to}"
            if exact and outputs[id] > 1:
                raise Violation(f"{outputs[id]} outputs of {what}", "processed-twice")
            if exact and outputs[id] and letters[id]:
                raise Violation(f"an output and a dead letter of {what}", "output-and-letter")
            if exact and offset >= up_to and outputs[id]:
                raise Violation(f"an output of {what}", "output-without-offset")
            if offset < up_to and not outputs[id] and not letters[id]:
                raise Violation(f"neither an output nor a dead letter of {what}", "offset-without-output")
            if letters[id] and group.failures[id] < attempts:
                text = f"a dead letter after {group.failures[id]} failures of {what}"
                raise Violation(text, "dead-early")
    group.done["inputs"] += sum(map(len, inputs.values()))
    group.done["outputs"] += outputs.total()
    group.done["letters"] += letters.total()
    group.done["letters twice"] += sum(n > 1 for n in letters.values())
    return True
