"""What a coordinator answers about the offsets of a consumer group. Sent between processes, also of other
versions, and never stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from escrowmq.replication.calling.carried_answers import Carried, prepare


class HeldPlaces(Carried, frozen=True):
    """``committed``: topic -> partition -> next offset. ``held``: topic -> partitions whose committed offset
    an open transaction will move, or leave."""

    committed: Mapping[str, Mapping[int, int]]
    held: Mapping[str, Sequence[int]] = {}


prepare(__name__)
