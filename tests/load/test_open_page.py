"""Figures of a million open transactions: each turn with all of them beside its neighbour with none."""

from __future__ import annotations

import pytest

from benchmarks.load.opened import ratios_of
from benchmarks.load.page import render


def test_the_rate_with_all_open_is_told_as_a_share_of_the_rate_with_none() -> None:
    ratios = ratios_of({"none": [2_000.0, 4_000.0], "many": [1_000.0, 3_000.0]})
    assert ratios == [0.5, 0.75]
    with pytest.raises(ValueError, match="zip"):
        ratios_of({"none": [2_000.0], "many": []})


def test_the_page_tells_the_rate_of_checks_with_and_without_and_their_ratio() -> None:
    lone = {"p50_ms": 5.0, "p99_ms": 16.0, "max_ms": 103.0}
    figures = {
        "opened": 1_000_000,
        "bytes_each": {"leader": 520.0},
        "commits_per_s": {"none": 27_712.0, "many": 25_503.0},
        "ratios": [0.57, 0.95],
        "ratio": 0.95,
        "leader_us": {"none": 16.9, "many": 18.4},
        "checks_per_s": {"none": 2_111.0, "many": 1_689.0},
        "check_ratios": [0.7, 0.8, 0.9],
        "check_ratio": 0.8,
        "first_commit_after_leader_s": 0.3,
        "back_after_leader_s": 8.2,
        "first_commit_after_all_s": 16.5,
        "back_after_all_s": 16.6,
        "listing_s": {"first 1,000": 0.14},
        "lone_ms_before": lone,
        "lone_ms_while_listing": lone,
    }
    text = render({"open": figures}).replace("\n", " ")
    assert "2,111 a second with none open besides, 1,689 with all of them" in text
    assert "a ratio of 0.80 (median; 0.70 to 0.90)" in text
