"""The messages that producers send: many small ones, some of 30 KB and more, now and then one of a megabyte.

Small ones alone would hide truncation; large ones alone would hide batching. Every message carries its
id and a checksum of its whole body, so that a reader can tell who sent it and that nothing is missing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from escrowmq import Message
from tests.history.events import Sent, body

#: (share of transactions, number of messages, bytes of each)
MIX = (
    (0.62, (1, 4), (40, 400)),
    (0.20, (10, 40), (40, 120)),
    (0.14, (1, 3), (30_000, 64_000)),
    (0.03, (1, 1), (100_000, 300_000)),
    (0.01, (1, 1), (1_000_000, 1_000_000)),
)
KEYS = 12
#: The topic that is deleted and created again (see recreated.py), and the shares of sets of messages that
#: avoid it, that are all in it, and that are in it and in other topics.
RECREATED = "reborn"
AVOID_IT, ONLY_IN_IT, IN_ALL = 0.75, 0.1, 0.15


def sizes(rng: random.Random) -> list[int]:
    """The sizes of the messages of one transaction."""
    _, count, size = rng.choices(MIX, [share for share, *_ in MIX])[0]
    return [rng.randint(*size) for _ in range(rng.randint(*count))]


def _topics(rng: random.Random, names: list[str]) -> list[str]:
    """The topics of one set of messages."""
    if RECREATED not in names:
        return names
    others = [name for name in names if name != RECREATED]
    (chosen,) = rng.choices([others, [RECREATED], names], [AVOID_IT, ONLY_IN_IT, IN_ALL])
    return chosen


def compose(
    rng: random.Random, prefix: str, wanted: list[int], topics: Mapping[str, int], key_prefix: str
) -> list[tuple[Sent, Message]]:
    """Messages of these sizes, by key or to a partition; ``topics``: name -> partitions."""
    composed = []
    names = _topics(rng, list(topics))
    for n, size in enumerate(wanted):
        identity = f"{prefix}.{n}"
        topic = rng.choice(names)
        if rng.random() < 0.5:
            key, partition = f"{key_prefix}{rng.randrange(KEYS)}", None
        else:
            key, partition = None, rng.randrange(topics[topic])
        composed.append(
            (
                Sent(identity, topic, -1 if partition is None else partition, key),
                Message(
                    topic,
                    body(identity, size),
                    key=None if key is None else key.encode(),
                    partition=partition,
                ),
            )
        )
    return composed
