"""Spark over EscrowMQ: sessions on Ray, and the data source ``escrowmq``. Reached as ``escrowmq.spark``."""

from escrowmq.spark_integration.java import Java, find_java, provide_java
from escrowmq.spark_integration.session.request import SessionRequest
from escrowmq.spark_integration.session.spark_session import SessionFactory, spark_session, stop_session
from escrowmq.spark_integration.sink.settling import (
    Resolution,
    SparkSinkQuerier,
    resolve_sink,
    resolve_write,
)
from escrowmq.spark_integration.source.metrics import lag

__all__ = [
    "Java",
    "Resolution",
    "SessionFactory",
    "SessionRequest",
    "SparkSinkQuerier",
    "find_java",
    "lag",
    "provide_java",
    "register",
    "resolve_sink",
    "resolve_write",
    "spark_session",
    "stop_session",
]


def __getattr__(name: str) -> object:
    # The source needs pyspark; Java must be found (and Ray started) on machines without it as well.
    if name == "register":
        from escrowmq.spark_integration.data_source import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
