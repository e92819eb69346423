"""Spark for EscrowMQ: sessions on Ray, and the data source ``escrowmq``. Imported as ``escrowmq.spark``.

The layers from top to bottom, each of which imports only layers below it: ``session`` starts Spark and
registers the source; ``data_source`` is the class that Spark finds by the format's name; ``source`` reads and
``sink`` writes, and neither imports the other; ``decode`` turns messages into Arrow. All of them use the
modules at the root: ``ray_link`` (how a Spark process joins the cluster), ``option_values`` and
``java``. ``sink_resolve``, ``java`` and ``demo_answers`` are commands (``python -m``). Read
``data_source`` first. ``ray_data`` reads and writes the same way for Ray Data, without Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from escrowmq.spark_integration.data_source import register
    from escrowmq.spark_integration.java import Java, find_java, provide_java
    from escrowmq.spark_integration.session.request import SessionRequest
    from escrowmq.spark_integration.session.spark_session import SessionFactory, spark_session, stop_session
    from escrowmq.spark_integration.sink.settling import (
        Resolution,
        SparkSinkQuerier,
        resolve_sink,
        resolve_write,
    )
    from escrowmq.spark_integration.source.stream_planning import lag

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

#: Modules are imported on first use: a node without Spark's packages must be able to find Java before it
#: starts Ray.
_MODULE_OF = {
    "Java": "java",
    "find_java": "java",
    "provide_java": "java",
    "SessionRequest": "session.request",
    "SessionFactory": "session.spark_session",
    "spark_session": "session.spark_session",
    "stop_session": "session.spark_session",
    "register": "data_source",
    "Resolution": "sink.settling",
    "SparkSinkQuerier": "sink.settling",
    "resolve_sink": "sink.settling",
    "resolve_write": "sink.settling",
    "lag": "source.stream_planning",
}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"escrowmq.spark_integration.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
