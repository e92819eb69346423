"""What one entry does for share groups, while it is under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from escrowmq.replication.format.forwarded import Origin
from escrowmq.replication.replica.submission import Submission
from escrowmq.replication.state.machine import Result
from escrowmq.replication.state.shares import Key


@dataclass(slots=True)
class Finishing:
    """What an entry makes final, for share groups, and which of them it deletes. ``answers`` replace the
    results OK of its SHARE_ACKs."""

    ranges: list[tuple[Key, Sequence[int]]] = field(default_factory=list)
    answers: list[tuple[Submission, int, Result]] = field(default_factory=list)
    held: list[tuple[Key, Sequence[int]]] = field(default_factory=list)  # by transactions that it opens
    deleted: list[str] = field(default_factory=list)  # groups
    dead: list[tuple[int, Origin]] = field(default_factory=list)  # slots of their topics
    copies: list[tuple[str, int]] = field(default_factory=list)  # a counter's name, and by how much it rises
