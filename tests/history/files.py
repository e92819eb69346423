"""Histories as files: the events of several recorders in the order of time, torn last lines left out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from tests.history.events import BadHistory, Event, decode


def stream(files: Iterable[Path]) -> Iterator[Event]:
    """Events of several recorders in the order of time, without holding them all.

    The last line of a recorder that was killed may be torn, also in the middle of the file if it went
    on later. What the line was to say had not happened yet: an invoke is written before anything is
    sent, and an end that is missing is an unknown.
    """
    return heapq.merge(*(_lines(file) for file in files), key=attrgetter("at"))


def load(files: Iterable[Path]) -> list[Event]:
    """As ``stream``, all in memory."""
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
