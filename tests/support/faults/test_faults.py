"""What the runs of faults share: decks, commands, what was left out, tables."""

from __future__ import annotations

import random
import shlex
from collections import Counter
from itertools import islice

import pytest
from rich.console import Console

from tests.support.faults.absence import lines, not_drawn, unseen
from tests.support.faults.dealing import deal, pick
from tests.support.faults.replaying import command, listed
from tests.support.faults.tables import Cells, Grid, Sheet

CARDS = {"kill": 3, "pause": 1, "cut": 2}


@pytest.mark.parametrize("seed", range(10))
def test_every_deck_has_one_of_each_first_and_each_as_often_as_its_cards_say(seed: int) -> None:
    dealt = list(islice(deal(random.Random(seed), CARDS), 12))
    for deck in (dealt[:6], dealt[6:]):
        assert set(deck[:3]) == set(CARDS) and Counter(deck) == CARDS
    assert dealt == list(islice(deal(random.Random(seed), CARDS), 12))
    with pytest.raises(ValueError, match="no kinds"):
        next(deal(random.Random(seed), {}))


def test_what_is_picked_follows_the_cards_and_the_seed() -> None:
    rng = random.Random(1)
    picked = Counter(pick(rng, CARDS) for _ in range(6_000))
    assert all(abs(picked[kind] - 1_000 * cards) < 200 for kind, cards in CARDS.items())
    assert pick(random.Random(5), CARDS) == pick(random.Random(5), CARDS)


def test_a_command_can_be_pasted_into_a_shell() -> None:
    text = command("tests.sim", seed=0, drop=["a", "b"], net=None, trace=True, keep=False, only_faults="none")
    expected = "python -m tests.sim --seed 0 --drop a --drop b --trace --only-faults none"
    assert text == expected and shlex.split(text) == expected.split()
    assert (listed([3, 7]), listed([])) == ("3,7", "none")


def test_what_was_not_seen_is_told_with_its_reason_and_one_line_a_reason() -> None:
    reasons = unseen(["a", "b", "c"], {"b"}, lambda what: not_drawn(1_000))
    assert lines(reasons) == ["a, c: not drawn in 1,000 trials"]


def test_a_grid_tells_which_cells_were_not_reached_and_counts_no_impossible_one() -> None:
    cells = Cells({("early", "kill"): 1_200})
    grid = Grid(("kill", "pause"), ("early", "late"), cells, {("early", "kill"), ("late", "kill")})
    assert grid.empty() == [("late", "kill")] and grid.missing() == "1 of 2 cells were not reached"
    assert Grid(("kill", "pause"), ("early", "late"), cells).missing() == "3 of 4 cells were not reached"
    assert grid.markdown().splitlines()[2:] == ["| kill | 1,200 | 0 |", "| pause |  |  |"]
    console = Console(width=80)
    with console.capture() as shown:
        console.print(grid.table("Faults"))
    assert "1,200" in shown.get() and "2: late" in shown.get()


def test_a_sheet_is_the_same_on_a_terminal_and_in_a_document() -> None:
    sheet = Sheet(("kind", "trials"), [("kill", "7")])
    assert sheet.markdown() == "| kind | trials |\n| --- | --: |\n| kill | 7 |"
    console = Console(width=80)
    with console.capture() as shown:
        console.print(sheet.table("Trials"))
    assert all(word in shown.get() for word in ("kind", "trials", "kill", "7", "Trials"))
