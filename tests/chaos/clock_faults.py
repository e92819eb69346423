"""Faults on wall clocks: that of one replica jumps, to and fro, by moments or by days.

The time of a group is the lower median of its voters' clocks, so one of three may show anything: delayed
messages come neither before their time nor late. As all replicas of a round are on one machine, its clock
shows the true time: while the fault lasts, what can be read is compared with that.
"""

from __future__ import annotations

import time
from typing import Any

from escrowmq import EscrowMQError
from escrowmq.actors.client.topology import broker_name
from tests.chaos import delays
from tests.chaos.clocks import Clocks
from tests.chaos.deployment import gone, until
from tests.chaos.member_faults import MemberFaults
from tests.chaos.plan import Fault
from tests.chaos.striking import BACK_S, dice, in_thread

#: How far a clock jumps, in seconds.
JUMPS_S = (0.3, 5.0, 120.0, 3 * 3600.0, 40 * 86_400.0)
#: Time between two looks at what can be read.
LOOK_S = 0.25


class ClockFaults(MemberFaults):
    """See the module's docstring."""

    #: Delayed messages that could be read before their time.
    early: set[str]
    #: How often somebody looked while a clock was wrong.
    looks: int

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.early, self.looks = set(), 0

    def _clock_jump(self, fault: Fault) -> Any:
        """Set a leader's or a follower's clock wrong, up to three times, and then right again."""
        victim, rng = self.leader_or_follower(fault, 0.6), dice(fault, "clock")
        jumps = [rng.choice((-1, 1)) * rng.choice(JUMPS_S) for _ in range(rng.randint(1, 3))]
        pids = self.pids([victim])

        def jump() -> None:
            clocks = Clocks()
            for pid in pids:
                try:
                    for ahead_s in jumps:
                        clocks.jump(pid, round(1000 * ahead_s))
                        until(f"the clock of {victim} is set", lambda: clocks.taken(pid) or gone(pid), BACK_S)  # noqa: B023
                        self._watch(fault.seconds / len(jumps))
                finally:
                    clocks.right(pid)

        shown = ", ".join(f"{ahead_s:+g} s" for ahead_s in jumps)
        return in_thread(f"{broker_name(*victim)}: {shown}", jump)

    def _watch(self, seconds: float) -> None:
        """Look for that time at the delayed messages that can be read."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self.early |= delays.early(self.deployment, self._directory)
            except (EscrowMQError, TimeoutError):  # nobody leads just now
                continue
            finally:
                time.sleep(LOOK_S)
            self.looks += 1
