"""Who reads which partition: a balanced assignment that moves as little as possible.

Pure function of the members' subscriptions and of who holds what now. Balanced means: no member
could give one of its partitions to a member that has at least two fewer and subscribes to it.
Sticky means: a partition stays where it is unless balance, a leaver or a subscription moves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from escrowmq.actors.client.consumer_groups import TopicPartition


def balance(
    subscriptions: Mapping[str, Set[str]],
    partitions: Mapping[str, int],
    holders: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """The member of each partition that anybody subscribes to.

    ``subscriptions``: member -> topics; ``partitions``: topic -> number (absent: no such topic yet);
    ``holders``: who holds a partition now. The same arguments always give the same answer.
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

    Ends: every move makes the sum of the squared loads smaller by at least two.
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
