"""Settings of the way from a client to a broker group, each default with its reason.

A nonsensical value raises ConfigError where it is set, never later at work.
"""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.replication.carried_settings import by_name, check_positive


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """How clients talk to a broker group."""

    #: A leader's usual answer takes 2 to 20 ms; after a quarter of a second of silence a cheap
    #: question to the other replicas is worthwhile. Ray itself reports a death only after 1 to 64 s.
    probe_after_s: float = 0.25
    #: An election takes 0.3 to 0.6 s, so asking every 0.1 s adds little to a fail-over.
    probe_interval_s: float = 0.1
    #: A probe without an answer for this long went to a dead process; it is repeated, since a replica
    #: that came back under the same name does not answer calls made to its predecessor.
    probe_timeout_s: float = 2.0
    #: Calls under way per group. 4 to 16 saturate a group; more only moves the queue into the broker. Each
    #: answer that takes longer than ``probe_after_s`` reduces it by one, down to two; each faster one adds
    #: one.
    calls_in_flight: int = 8

    def __post_init__(self) -> None:
        check_positive(self, "probe_after_s", "probe_interval_s", "probe_timeout_s", "calls_in_flight")
