"""Share consumers' calls without threads: a call that finds nothing is put aside, as a fetch is."""

from __future__ import annotations

from escrowmq.replication.calling.answers import Reply
from escrowmq.replication.host.sharing import Asked, Sharing


class StagedSharing(Sharing):
    """Replaces ``Sharing``."""

    def _ask(self, asked: Asked, wait_s: float) -> Reply:
        def attempt() -> Reply | None:
            answer = super(StagedSharing, self)._ask(asked, 0.0)
            return answer if answer[0] != "ok" or answer[1] else None

        return self._running.news.wait_for(attempt, wait_s) or ("ok", [])
