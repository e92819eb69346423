"""``python -m tests.fence_trials``: kill trials of fence, inbox, outbox; exit code 0 if nothing is wrong."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import escrowmq
from tests.fence_trials.running import DECK, DECKS, Run, plan
from tests.fence_trials.shopping import ORDERS_OF_A_TRIAL
from tests.support.faults.absence import lines, not_drawn, unseen
from tests.support.faults.replaying import command


def main(
    trials: Annotated[int, typer.Option(help="How many.")] = 100,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 1,
    only: Annotated[int, typer.Option(help="Only the trial of this number.")] = -1,
    kind: Annotated[
        str,
        typer.Option(
            help="Only those on postgresql, mariadb or sqlite, or: shop, standby, redrives, tenants."
        ),
    ] = "",
    strike: Annotated[str, typer.Option(help="Only those that strike this, e.g. relay.")] = "",
    orders: Annotated[
        int, typer.Option(help="That a shop takes; kills are in proportion.")
    ] = ORDERS_OF_A_TRIAL,
) -> None:
    """Kill services, handlers, leaders and databases; compare orders with messages and bills."""
    planned = [
        trial
        for trial in plan(seed, trials)
        if only in (-1, trial.number) and kind in ("", trial.kind) and strike in "+".join(trial.victims)
    ]
    with escrowmq.start_local(groups=1, replicas=3, namespace="fence-trials") as cluster:
        run = Run(cluster, planned, lambda line: print(line, flush=True), orders)
        outcome = run.run()
    strikes, steps, relays, shapes = (
        ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))
        for counted in (outcome.strikes, outcome.died_before, outcome.relays_died, outcome.of_shapes)
    )
    print(
        f"{outcome.trials} trials, kills: {strikes}; handlers died before: {steps or 'none'}; "
        f"relays: {relays or 'none'}; {outcome.orders} orders, {outcome.parcels} parcels, "
        f"{outcome.checks_first} kept out by a check, {outcome.purged} rows purged; "
        f"{shapes or 'nothing'} in shapes of their own; "
        f"{len(outcome.problems)} problems, "
        f"{outcome.seconds:.0f} s"
    )
    drawn = {"+".join(trial.victims) for trial in planned}
    every = ["+".join(victims) for deck in (DECK, *DECKS.values()) for victims in deck]
    for line in lines(unseen(every, drawn, lambda _: not_drawn(len(planned)))):
        print(line)
    for problem in outcome.problems:
        print(problem)
    if outcome.problems:
        again = command(
            "tests.fence_trials",
            trials=trials,
            seed=seed,
            kind=kind or None,
            strike=strike or None,
            orders=orders,
        )
        print(f"again: {again}   (--only NUMBER for one trial)")
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
