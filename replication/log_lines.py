"""Log records as one JSON object a line, for whoever collects logs of many processes.

The keys: ``time`` (as the machine's zone has it), ``level``, ``logger``, ``message``, ``error`` (the
traceback, if any), what the process is (``group``, ``replica``, ``term`` of a broker), and ``tx_id`` where a
record names one. Text is what Python's own logging makes, and needs nothing from here.
"""

from __future__ import annotations

import enum
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any

#: What a record may have been given as ``extra`` that is a key of its own.
EXTRA = ("tx_id", "app", "topic")


class LogFormat(enum.StrEnum):
    """How a process writes its log."""

    text = "text"
    json = "json"


class JsonLines(logging.Formatter):
    """``context()`` says what the process is when a record is written; it must not block or raise."""

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
    """Warnings and errors of this process go to its standard error in this form, in place of whatever handled
    them before."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines(context) if form is LogFormat.json else text)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
