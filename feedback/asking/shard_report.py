"""A feedback process's report to operators: sizes and counts, nothing that grows with its pairs."""

from __future__ import annotations

import msgspec

from escrowmq.replication.calling.carried_answers import Carried, prepare


class ShardReport(Carried, frozen=True, kw_only=True):
    """Feedback process ``shard`` of ``shards``.

    ``apps``: those whose producers polled recently; ``producers``: how many there are, as far as they are
    counted (``PollPace``). ``pairs_here``: apps and topics hosted; ``pairs_working``: those that
    have checks on hand. ``pairs_due``: those for which a broker group has named due checks. ``polls_parked``:
    producers that wait here to be asked; ``poll_wait_s``: for how long each stays. ``tables_missing``: app
    and name of fences' tables, up to eight, under which transactions are open and which no producer here has.
    ``counts``: events since the process started, by name; ``errors``: pairs that failed; ``polls_refused``
    and ``answers_refused``: sent away; ``pairs_full``: had to wait for a slot.
    """

    shard: int
    shards: int
    pid: int = 0
    apps: int = 0
    pairs_here: int = 0
    pairs_working: int = 0
    pairs_due: int = 0
    polls_parked: int = 0
    poll_wait_s: float = 0.0
    producers: int = 0
    tables_missing: tuple[str, ...] = ()
    counts: dict[str, int] = msgspec.field(default_factory=dict)


prepare(__name__)
