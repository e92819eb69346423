"""Hand-made rows and logs: each anomaly of an outbox in the shortest case that shows it, and what is none."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.history.outbox import DUPLICATE, LOST, NEVER, REORDERED, Row, Seen, anomalies


def row(number: int, **told: object) -> Row:
    """Transactions one after the other."""
    given = {"key": "k", "began": number, "committed": number + 0.5} | told
    return Row(f"m{number}", **given)  # type: ignore[arg-type]


def log(*numbers: int, place: str = "t[0]") -> list[Seen]:
    return [Seen(f"m{number}", place, offset) for offset, number in enumerate(numbers)]


BAD = {
    "not there": ([row(1), row(2)], log(1), [LOST]),
    "there twice": ([row(1), row(2)], log(1, 1, 2), [DUPLICATE]),
    "there in two partitions": ([row(1)], [*log(1), *log(1, place="t[1]")], [DUPLICATE]),
    "of no row": ([row(1)], log(1, 2), [DUPLICATE]),
    "of a row that was rolled back": ([row(1, committed=NEVER)], log(1), [DUPLICATE]),
    "of a row that was dropped": ([row(1, dropped=True)], log(1), [DUPLICATE]),
    "the later one first": ([row(1), row(2)], log(2, 1), [REORDERED]),
    "one behind two that are later": ([row(1), row(2), row(3)], log(2, 3, 1), [REORDERED]),
    "one that overtakes two": ([row(1), row(2), row(3)], log(3, 1, 2), [REORDERED, REORDERED]),
    "the second one again behind the third": ([row(2), row(3)], log(2, 3, 2), [DUPLICATE]),
    "lost and repeated": ([row(1), row(2)], log(2, 2), [LOST, DUPLICATE]),
}
GOOD = {
    "in order": ([row(1), row(2), row(3)], log(1, 2, 3)),
    "rolled back": ([row(1, committed=NEVER)], []),
    "dropped": ([row(1, dropped=True)], []),
    "committed or not, nobody knows: not": ([row(1, committed=NEVER, unsure=True)], []),
    "committed or not, nobody knows: it is": ([row(1, committed=NEVER, unsure=True)], log(1)),
    "transactions that overlapped": ([row(1, committed=5.0), row(2)], log(2, 1)),
    "other keys": ([row(1), row(2, key="other")], log(2, 1)),
    "no key": ([row(1, key=None), row(2, key=None)], log(2, 1)),
    "other partitions": ([row(1), row(2)], [*log(2), *log(1, place="t[1]")]),
    "a person sent it again": ([row(1, may_repeat=True)], log(1, 1)),
    "its topic was deleted": ([row(1, may_miss=True)], []),
    "it was dead, and a person tried it again": ([row(1, unordered=True), row(2)], log(2, 1)),
}


@pytest.mark.parametrize("name", BAD)
def test_an_anomaly_is_found_as_what_it_is(name: str) -> None:
    rows, seen, kinds = BAD[name]
    assert [line.partition(":")[0] for line in anomalies(rows, seen)] == kinds


@pytest.mark.parametrize("name", GOOD)
def test_what_is_allowed_is_no_anomaly(name: str) -> None:
    assert anomalies(*GOOD[name]) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_sound_log_passes_and_the_same_one_with_a_fault_fails(seed: int) -> None:
    rng = random.Random(seed)
    rows = [row(number, key=rng.choice("abc")) for number in range(40)]
    places = {key: rng.choice(("t[0]", "t[1]")) for key in "abc"}
    seen = [Seen(one.value, places[one.key], offset) for offset, one in enumerate(rows)]  # type: ignore[index]
    assert anomalies(rows, seen) == []
    at = rng.randrange(40)
    assert anomalies(rows, seen[:at] + seen[at + 1 :])[0].startswith(LOST)
    assert anomalies(rows, [*seen, seen[at]._replace(offset=99)])[0].startswith(DUPLICATE)
    last = next(n for n in reversed(range(40)) if rows[n].key == rows[0].key)
    if last:
        swapped = [*seen]
        swapped[0], swapped[last] = (
            seen[last]._replace(offset=seen[0].offset),
            seen[0]._replace(offset=seen[last].offset),
        )
        found = anomalies(rows, swapped)
        assert found and all(line.startswith(REORDERED) for line in found)
    assert anomalies([replace(one, committed=NEVER) for one in rows], seen)[0].startswith(DUPLICATE)
