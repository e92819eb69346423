"""Share consumers' calls without threads: a call that finds nothing is put aside, as a fetch is."""

from __future__ import annotations

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.host.sharing import Asked, Sharing
from escrowmq.replication.sharing.pieces import UNNUMBERED


class StagedSharing(Sharing):
    """Replaces ``Sharing``."""

    def _ask(self, asked: Asked, wait_s: float, call: int, received: int) -> tuple[Reply, int]:
        def attempt() -> tuple[Reply, int] | None:
            found = super(StagedSharing, self)._ask(asked, 0.0, call, received)
            return found if found[0][0] != "ok" or found[0][1] else None

        return self._running.news.wait_for(attempt, wait_s) or (("ok", []), UNNUMBERED)
