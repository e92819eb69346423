"""``python -m tests.history.scale``: shows that the checker's time is linear in the number of events."""

from __future__ import annotations

import gc
import time

from tests.history.checker import check
from tests.history.events import Event
from tests.history.model import Model


def history(events: int) -> list[Event]:
    """A correct history of about this many events."""
    model = Model(events)
    while len(model.events) < events - 10:
        model.run(200)
    model.read_finally()
    return model.events


def measure(events: int) -> float:
    """CPU seconds that the checker takes."""
    recorded = history(events)
    gc.collect()
    started = time.process_time()
    assert check(recorded).ok
    return time.process_time() - started


def main() -> None:
    hundred, million = measure(100_000), measure(1_000_000)
    times = f"{million / hundred:.1f} times as long"
    print(f"100,000 events: {hundred:.2f} s; 1,000,000 events: {million:.2f} s, {times}")


if __name__ == "__main__":
    main()
