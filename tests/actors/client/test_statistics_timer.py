"""The thread that tells an application its client's statistics."""

from __future__ import annotations

import threading
import time

import pytest

from escrowmq.actors.client.statistics import StatisticsTimer
from escrowmq.replication.errors import ConfigError


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1), GeneratorExit()])
def test_a_callback_that_raises_is_called_again(caplog, error):
    told, enough = [], threading.Event()

    def callback(number):
        told.append(number)
        if len(told) == 3:
            enough.set()
        raise error

    timer = StatisticsTimer(callback, 0.1, lambda: 7)
    assert enough.wait(10.0)
    timer.close()
    before = len(told)
    time.sleep(0.25)
    assert told == [7] * before, "none after close"
    assert "a statistics_callback failed" in caplog.text


def test_a_callback_that_hangs_does_not_hold_close_up():
    called, end = threading.Event(), threading.Event()
    timer = StatisticsTimer(lambda _: (called.set(), end.wait(20.0)), 0.1, lambda: 7)
    assert called.wait(10.0)
    began = time.monotonic()
    timer.close()
    assert time.monotonic() - began < 5.0
    end.set()


@pytest.mark.parametrize(
    ("callback", "interval_s"),
    [(7, 1.0), (print, 0.0), (print, "1"), (print, float("nan")), (print, float("inf")), (print, 1e11)],
)
def test_what_is_refused(callback, interval_s):
    with pytest.raises(ConfigError, match="statistics_"):
        StatisticsTimer(callback, interval_s, lambda: 7)
