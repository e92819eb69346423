"""Lag by partition from a query's progress, in each of the forms that Spark gives it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from escrowmq.spark_integration import lag

END, HEAD = {"t": {"0": 5, "1": 7}, "#initial": {"t": {"0": 1}}}, {"t": {"0": 9, "1": 7}, "new": {"0": 3}}
LAG = {"t": {0: 4, 1: 0}, "new": {0: 3}}


def test_lag_is_what_lies_between_the_batch_and_the_log_s_end() -> None:
    sources: list[Any] = [{"endOffset": END, "latestOffset": HEAD}]
    assert lag({"sources": sources}) == LAG
    texts = SimpleNamespace(endOffset=json.dumps(END), latestOffset=json.dumps(HEAD))
    assert lag(SimpleNamespace(sources=[texts])) == LAG
    further = {"endOffset": {"t": {"0": 2, "1": 7}}, "latestOffset": {"t": {"0": 9, "1": 7}}}
    assert lag({"sources": [*sources, further]})["t"] == {0: 7, 1: 0}


def test_other_sources_and_no_progress_have_none() -> None:
    assert lag(None) == {}
    rate = {"endOffset": "17", "latestOffset": None}
    files = {"endOffset": '{"logOffset": 3}', "latestOffset": '{"logOffset": 4}'}
    assert lag({"sources": [rate, files]}) == {}
