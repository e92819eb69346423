"""Which member reads which partition: a balanced assignment that moves as little as possible.

A pure function of the members' subscriptions and of the present holders. Balanced means: no member
could give one of its partitions to a member that subscribes to its topic and has at least two fewer.
Sticky means: a partition stays where it is unless balance, a leaving member or a subscription moves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from escrowmq.actors.client.consumer_groups import TopicPartition


def balance(
    subscriptions: Mapping[str, Set[str]],
    partitions: Mapping[str, int],
    holders: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """The member for each partition of any subscribed topic.

    ``subscriptions``: member -> topics; ``partitions``: topic -> number (absent: no such topic yet);
    ``holders``: the present holders. The same arguments always give the same answer.
    """
    by_topic: dict[str, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            by_topic.setdefault(topic, []).append(member)
    owned: dict[str, list[TopicPartition]] = {member: [] for member in sorted(subscriptions)}
    orphans: list[TopicPartition] = []
    for topic in sorted(by_topic):
        for partition in range(partitions.get(topic, 0)):
            holder = holders.get((topic, partition))
            if holder is not None and topic in subscriptions.get(holder, ()):
                owned[holder].append((topic, partition))
            else:
                orphans.append((topic, partition))
    for tp in orphans:
        owned[_least_loaded(by_topic[tp[0]], owned)].append(tp)
    _level(owned, by_topic)
    return {tp: member for member, mine in owned.items() for tp in mine}


def _least_loaded(candidates: Sequence[str], owned: Mapping[str, list[TopicPartition]]) -> str:
    return min(candidates, key=lambda member: len(owned[member]))


def _level(owned: dict[str, list[TopicPartition]], by_topic: Mapping[str, Sequence[str]]) -> None:
    """Moves partitions from fuller to emptier members until no move helps.

    Terminates: every move reduces the sum of the squared loads by at least two.
    """
    moved = True
    while moved:
        moved = False
        for giver in sorted(owned, key=lambda member: -len(owned[member])):
            for tp in reversed(owned[giver]):
                taker = _least_loaded(by_topic[tp[0]], owned)
                if len(owned[taker]) + 1 < len(owned[giver]):
                    owned[giver].remove(tp)
                    owned[taker].append(tp)
                    moved = True
                    break
            if moved:
                break
