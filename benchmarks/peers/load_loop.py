"""The other end of ``program``: reads rows from standard input, runs them, prints figures."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: Messages are made beforehand, because making them is not measured. As many as the load of EscrowMQ has.
READY = 1024


def serve(rows: Mapping[str, Callable[[float], dict[str, Any]]], lines: Iterable[str] | None = None) -> None:
    """Until the lines end; None: those of standard input."""
    print(json.dumps({"ready": sorted(rows)}), flush=True)
    for line in sys.stdin if lines is None else lines:
        row, seconds = line.split()
        try:
            answer = rows[row](float(seconds))
        except Exception as error:  # a row that fails must not end the others
            traceback.print_exc()  # to the log
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def bodies(size: int) -> Iterator[tuple[bytes, bytes]]:
    """An endless sequence of keys and random values."""
    ready = [(b"%08d" % number, os.urandom(size)) for number in range(READY)]
    while True:
        yield from ready


def timed(call: Callable[[], object], seconds: float) -> dict[str, Any]:
    """One call after the other."""
    took: list[float] = []
    begin = now = time.perf_counter()
    while now - begin < seconds:
        call()
        took.append((after := time.perf_counter()) - now)
        now = after
    return {"items": len(took), "seconds": now - begin, "p50_ms": sorted(took)[(len(took) - 1) // 2] * 1000}
