"""Moves a group to the next format level: asks all replicas of the cluster while this one leads.

A thread of its own, because asking takes up to seconds. It ends when the highest level is reached: after a
moment in a new cluster, at the end of the upgrade in one that is being upgraded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from escrowmq.replication.calling.answers import LevelReport
from escrowmq.replication.host.replica_setup import AskLevels
from escrowmq.replication.replica.levels import ahead_of, next_level
from escrowmq.replication.replica.replica import Replica
from escrowmq.replication.state.machine import LEVEL_MAX

#: Pause between two questions: short for a new cluster, whose clients want the level; long during an upgrade.
ASK_S, ASK_S_MAX = 0.1, 5.0
#: How often an upgrade that stays unfinished is reported.
REPORT_S = 600.0


class LevelWatch:
    """See the module's docstring. ``leads()``: whether this replica is a ready leader. ``later(fn)`` runs
    ``fn`` in the replica's thread. ``ask()`` may block."""

    def __init__(
        self,
        replica: Replica,
        *,
        leads: Callable[[], bool],
        later: Callable[[Callable[[], None]], None],
        ask: AskLevels,
        report: Callable[[str], None],
    ) -> None:
        self._replica = replica
        self._leads, self._later, self._ask, self._report = leads, later, ask, report
        self._stop = threading.Event()

    def start(self) -> None:
        """Start asking, unless the highest level is already reached."""
        if self._replica.state.level < LEVEL_MAX:
            threading.Thread(target=self._run, name="level", daemon=True).start()

    def stop(self) -> None:
        """Stop asking; a question under way ends by itself and changes nothing."""
        self._stop.set()

    def _run(self) -> None:
        pause_s, report_in_s = ASK_S, 0.0
        while not self._stop.wait(pause_s) and self._replica.state.level < LEVEL_MAX:
            if not self._leads():
                pause_s = ASK_S
                continue
            found = self._ask()
            reports = list(found.values()), ahead_of(self._replica.state.topics.gid, found)
            if next_level(self._replica.state.level, *reports) is not None:
                self._later(lambda told=reports: self._replica.raise_level(*told))  # type: ignore[misc]
                pause_s = ASK_S
                continue
            pause_s = min(2 * pause_s, ASK_S_MAX)
            report_in_s -= pause_s
            if found and pause_s == ASK_S_MAX and report_in_s <= 0:
                report_in_s = REPORT_S
                self._report(self._who_is_behind(found))

    def _who_is_behind(self, found: Mapping[tuple[int, int], LevelReport | None]) -> str:
        level, own = self._replica.state.level, self._replica.state.topics.gid
        behind = [
            f"replica {rid} of group {gid}"
            for (gid, rid), report in found.items()
            if next_level(level, [report], ahead_of(own, {(gid, rid): report})) is None
        ]
        return (
            f"format level {level} until all replicas are upgraded and answer; missing: {', '.join(behind)}"
        )
