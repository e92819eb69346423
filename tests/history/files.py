"""Histories in files: the events of several recorders in the order of time, without torn last lines."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from tests.history.events import BadHistory, Event, decode


def stream(files: Iterable[Path]) -> Iterator[Event]:
    """Events of several recorders in the order of time, without holding them all in memory.

    The last line of a killed recorder may be torn; it is in the middle of the file if the recorder continued
    later. Its event had not happened yet: an invoke is written before anything is sent, and a missing end
    counts as unknown.
    """
    return heapq.merge(*(_lines(file) for file in files), key=attrgetter("at"))


def load(files: Iterable[Path]) -> list[Event]:
    """Like ``stream``, but all in memory."""
    return list(stream(files))


def _lines(file: Path) -> Iterator[Event]:
    torn: Any = None
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line == b"\n":
                torn = None  # the recorder started again
                continue
            if torn is not None:
                raise BadHistory(f"{file}:{torn[0]} is no event: {torn[1][:200]!r}")
            try:
                event = decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                torn = (number, line)
                continue
            yield event
