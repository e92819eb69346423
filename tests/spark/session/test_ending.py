"""The end of a session's JVM, and what is told of a start that failed. Spark is not started for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from escrowmq.replication.errors import Unavailable
from escrowmq.spark_integration.session import driver_jvm
from escrowmq.spark_integration.session.spark_session import stop_session


class JvmIsGone:
    """What a session asks of its JVM fails, as it does when there is none."""

    def __init__(self) -> None:
        self._jvm = SimpleNamespace(_gateway_client=object())

    @property
    def conf(self) -> Any:
        raise ConnectionRefusedError

    stop = conf


def test_ending_a_session_again_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raised ConnectionRefusedError, or ended the JVM of the session after it."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    stop_session(JvmIsGone())  # type: ignore[arg-type]
    another = SimpleNamespace(jvm=SimpleNamespace(), _gateway_client=object())
    monkeypatch.setattr(SparkContext, "_gateway", another)
    stop_session(JvmIsGone())  # type: ignore[arg-type]
    assert SparkContext._gateway is another


def test_an_error_of_java_s_is_told_after_its_jvm_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is asked of the JVM, which is ended first: it could not be printed."""
    gone: list[bool] = []

    class Error(Py4JJavaError):
        def __init__(self) -> None: ...

        def __str__(self) -> str:
            if gone:
                raise ConnectionRefusedError
            return "An error occurred while calling None.\n: java.lang.IllegalStateException: no master"

    monkeypatch.setattr(driver_jvm, "end_jvm", lambda: gone.append(True))
    with (
        pytest.raises(Unavailable, match=r"Spark did not start: .*no master"),
        driver_jvm.bounded_start(9, "x"),
    ):
        raise Error
    assert gone
