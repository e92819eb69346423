"""Logs as JSON: one object per line, whatever is logged, with the identity of the process."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

from escrowmq.replication.log_lines import JsonLines

PROGRAM = """
import logging
from escrowmq.replication.log_lines import LogFormat, log_to_stderr
log_to_stderr(LogFormat.json, lambda: {"group": 2})
logging.getLogger("escrowmq.x").info("not shown")
logging.getLogger("escrowmq.x").warning("disk of %s\\nis full", "n1")
"""


def line(**extra: Any) -> dict[str, Any]:
    formatter = JsonLines(lambda: {"group": 0, "replica": 1, "term": 7})
    record = logging.getLogger("escrowmq.test").makeRecord(
        "escrowmq.test", logging.ERROR, "f", 1, "lost %r", ("ä\n",), extra.pop("exc_info", None), extra=extra
    )
    text = formatter.format(record)
    assert "\n" not in text
    told: dict[str, Any] = json.loads(text)
    return told


def test_a_record_is_one_object_with_its_process_and_its_transaction() -> None:
    told = line(tx_id="x1", other="not a key")
    time = told.pop("time")
    assert len(time) == len("2026-01-31T12:00:00.123")
    assert told == {
        "level": "error",
        "logger": "escrowmq.test",
        "message": "lost 'ä\\n'",
        "group": 0,
        "replica": 1,
        "term": 7,
        "tx_id": "x1",
    }


def test_a_traceback_is_a_key_of_its_own() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        told = line(exc_info=sys.exc_info())
    assert told["error"].startswith("Traceback") and told["error"].endswith("ValueError: why")


def test_a_process_logs_warnings_to_its_standard_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    (told,) = map(json.loads, done.stderr.splitlines())
    assert (told["message"], told["level"], told["group"]) == ("disk of n1\nis full", "warning", 2)
