"""The journal against a simple list, over random operations, crashes, power cuts and full disks.

For more seeds: ``JOURNAL_SEEDS=5000 pytest tests/replication/log/test_journal_model.py``; a failure names its
seed.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.journal_model import OPERATIONS, JournalModel

SEEDS = int(os.environ.get("JOURNAL_SEEDS", "150"))
FIRST_SEED = int(os.environ.get("JOURNAL_SEED", "1"))
NUMBER = st.integers(0, 255)
STEP = st.tuples(st.sampled_from(sorted(OPERATIONS)), NUMBER, NUMBER)


@settings(max_examples=200, deadline=None)
@given(seed=NUMBER, steps=st.lists(STEP, max_size=40))
def test_the_journal_reads_like_a_list_whatever_happens(seed: int, steps: list[tuple[str, int, int]]) -> None:
    model = JournalModel(seed)
    for step in steps:
        model.run(*step)


def test_long_random_runs_lose_nothing_that_was_durable() -> None:
    names, weights = list(OPERATIONS), list(OPERATIONS.values())
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        rng = random.Random(seed)
        model = JournalModel(seed)
        for step in range(150):
            name = rng.choices(names, weights)[0]
            try:
                model.run(name, rng.randrange(256), rng.randrange(256))
            except Exception as error:
                pytest.fail(
                    f"seed {seed}, step {step} ({name}): {error!r}; "
                    f"replay with JOURNAL_SEED={seed} JOURNAL_SEEDS=1"
                )
