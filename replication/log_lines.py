"""Log records as one JSON object per line, for collectors of many processes' logs.

The keys: ``time`` (in the machine's time zone), ``level``, ``logger``, ``message``, ``error`` (the
traceback, if any), what the process is (``group``, ``replica``, ``term`` of a broker), and ``tx_id`` where a
record names one. The text format is that of Python's own logging and needs nothing from here.
"""

from __future__ import annotations

import enum
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

#: Attributes passed as ``extra`` that become keys of their own.
EXTRA = ("tx_id", "app", "topic")


class LogFormat(enum.StrEnum):
    """How a process writes its log."""

    text = "text"
    json = "json"


class JsonLines(logging.Formatter):
    """``context()`` returns what the process is at the moment of the record; it must not block or raise."""

    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03d"

    def __init__(self, context: Callable[[], Mapping[str, Any]] = dict) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        told: dict[str, Any] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._context(),
        }
        told |= {name: getattr(record, name) for name in EXTRA if hasattr(record, name)}
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def log_to_stderr(form: LogFormat, context: Callable[[], Mapping[str, Any]] = dict) -> None:
    """Write warnings and errors of this process to its standard error in this format. Replaces the root
    logger's handlers."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines(context) if form is LogFormat.json else text)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
