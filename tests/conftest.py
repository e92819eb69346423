"""For every test: no deadline for Hypothesis' examples, and the order in which files begin.

Hypothesis judges what an example does, never how long a busy machine took for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.load_profile("here")

#: Files that take a minute or more, the longest first. A worker takes whole files, so one of these that came
#: last would run alone for as long as it takes.
LONGEST_FIRST = (
    "spark_trials/test_slice.py",
    "chaos/test_slice.py",
    "integration/test_spark_sessions.py",
    "integration/test_spark_stream.py",
    "integration/test_spark_batch.py",
    "integration/test_demo.py",
    "integration/test_examples.py",
    "integration/test_spark_sink.py",
    "test_packaging.py",
    "integration/test_spark_examples.py",
    "integration/test_three_nodes.py",
    "integration/test_ghost.py",
    "sim/test_broker_simulation.py",
    "sim/test_simulation.py",
    "sim/across/test_across.py",
    "sim/test_ghosts.py",
    "controls/test_controls.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    rank = {here / name: at for at, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
