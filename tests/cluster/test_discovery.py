"""Finding a cluster: what a process keeps of those that it has known."""

from __future__ import annotations

from escrowmq.cluster.discovery import KNOWN_MAX, remember


def test_what_is_kept_of_clusters_is_bounded_and_the_last_ones_stay() -> None:
    known: dict[tuple[str, str], int] = {}
    for number in [*range(KNOWN_MAX), 0, KNOWN_MAX]:
        remember(known, (f"10.0.0.{number}", "escrowmq"), number)
    assert len(known) == KNOWN_MAX and list(known.values())[-2:] == [0, KNOWN_MAX]
    assert 1 not in known.values()
