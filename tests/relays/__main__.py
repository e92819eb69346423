"""``python -m tests.relays``: drawn schedules of relays; exit code 0 if rows and log agree in all of them."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from typing import Annotated

import typer

from tests.controls.planting import by_name, planted
from tests.relays.schedule import CHANCES, TURNS, run
from tests.support.faults.absence import lines, not_drawn, unseen
from tests.support.faults.replaying import command


def main(
    seeds: Annotated[int, typer.Option(help="How many schedules.")] = 100,
    seed: Annotated[int, typer.Option(help="The first one's seed.")] = 0,
    turns: Annotated[int, typer.Option(help="Of each schedule.")] = TURNS,
    plant: Annotated[str | None, typer.Option(help="A fault of tests/controls/outbox_faults.py.")] = None,
) -> None:
    """Run relays that pause anywhere; compare rows with messages."""
    logging.disable()  # what relays and clients log about the faults
    fault = None if plant is None else by_name(plant)
    began, did, rows, virtual_s, bad = time.monotonic(), Counter[str](), 0, 0.0, 0
    for number in range(seed, seed + seeds):
        with planted(fault):
            outcome = run(number, turns)
        did, rows, virtual_s = did + outcome.did, rows + outcome.rows, virtual_s + outcome.virtual_s
        for line in outcome.found:
            print(line)
        if outcome.found:
            bad += 1
            changed = None if turns == TURNS else turns
            print(f"again: {command('tests.relays', seed=number, seeds=1, turns=changed, plant=plant)}")
    print(
        f"{seeds} schedules, {rows:,} rows, {virtual_s:,.0f} virtual s, {time.monotonic() - began:.0f} s: "
        f"{bad} with anomalies"
    )
    print(", ".join(f"{what} {count:,}" for what, count in sorted(did.items())))
    for line in lines(unseen(CHANCES, did, lambda _: not_drawn(seeds, "schedules"))):
        print(line)
    sys.exit(bool(bad))


if __name__ == "__main__":
    typer.run(main)
