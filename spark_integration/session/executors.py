"""The executors of a running session, as its driver knows them."""

from __future__ import annotations

import time
from typing import Any

#: Executors register once; asking costs a call into the JVM.
_ASK_EVERY_S = 0.1


def executor_count(spark: Any) -> int:
    """How many executors are registered with the driver at this moment."""
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is one too


def wait_for_executors(spark: Any, wanted: int) -> None:
    """Return when ``wanted`` executors are there. Bounded by ``driver_jvm.bounded_start``, which must be
    around it: that ends the JVM, and with it this.

    A session without executors would let its first query wait for them, for ever if need be.
    """
    while executor_count(spark) < wanted:
        time.sleep(_ASK_EVERY_S)
