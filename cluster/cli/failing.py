"""How commands report failure: a line with what is wrong, a line with what to do, and an exit code.

EscrowMQ's error texts have the form "what is wrong; what to do"; they are split into the two lines at the
first semicolon. There are only a few exit codes, so that scripts can tell "try again later" from "never".
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from escrowmq.feedback.database.errors import DatabaseMisused, OutboxBehind, OutboxRowBusy, UnknownOutboxRow
from escrowmq.replication.errors import (
    ClusterNotFound,
    ConfigError,
    EscrowMQError,
    GroupKindMismatch,
    GroupNotEmpty,
    InvalidMessage,
    NotAuthorized,
    NotLeader,
    OffsetOutOfRange,
    OutcomeUnknown,
    Overloaded,
    TopicExists,
    TransactionConflict,
    Unavailable,
    UnknownDeadLetter,
    UnknownGroup,
    UnknownTopic,
    UnknownTransaction,
)

FAILED, USAGE, UNAVAILABLE, NOT_FOUND, CONFLICT, UNKNOWN_OUTCOME, INTERRUPTED = 1, 2, 3, 4, 5, 6, 130

_CODES: tuple[tuple[type[EscrowMQError], int], ...] = (
    (ConfigError, USAGE),
    (DatabaseMisused, USAGE),
    (InvalidMessage, USAGE),
    (NotAuthorized, USAGE),
    (OffsetOutOfRange, USAGE),
    (ClusterNotFound, UNAVAILABLE),
    (Unavailable, UNAVAILABLE),
    (Overloaded, UNAVAILABLE),
    (NotLeader, UNAVAILABLE),
    (UnknownGroup, NOT_FOUND),
    (UnknownDeadLetter, NOT_FOUND),
    (UnknownTopic, NOT_FOUND),
    (UnknownTransaction, NOT_FOUND),
    (UnknownOutboxRow, NOT_FOUND),
    (OutboxBehind, CONFLICT),
    (OutboxRowBusy, CONFLICT),
    (TransactionConflict, CONFLICT),
    (GroupNotEmpty, CONFLICT),
    (GroupKindMismatch, CONFLICT),
    (TopicExists, CONFLICT),
    (OutcomeUnknown, UNKNOWN_OUTCOME),
)


def exit_code(error: EscrowMQError) -> int:
    """The exit code for an error; FAILED if its type has no specific code."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def explain(error: EscrowMQError) -> str:
    """``error: what is wrong`` and, if the text has a second part, ``hint: what to do``."""
    what, _, todo = str(error).replace("\n", " ").partition("; ")
    if isinstance(error, UnknownTopic) and error.partition is None:
        todo = f"escrowmq topic create {error.topic} --partitions 1; 'escrowmq topic list' shows all topics"
    if isinstance(error, OffsetOutOfRange):  # its own advice is for consumers
        todo = "give one in this range"
    lines = [f"error: {what or type(error).__name__}"]
    if todo:
        lines.append(f"hint: {todo}")
    return "\n".join(lines)


@contextlib.contextmanager
def writing_out() -> Iterator[None]:
    """Around what prints: output that cannot be written ends the command with one line and exit code 1, or 0
    if the reader has closed the pipe (``escrowmq consume ... | head``)."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # at exit, Python could only print a traceback
    except BrokenPipeError:
        _drop_output()
        sys.exit(0)
    except OSError as error:
        # With a file's name: one that the user named, or the profiles. Without one: most likely the output.
        where = "input or output" if error.filename is None else error.filename
        _drop_output()
        with contextlib.suppress(OSError):
            print(f"error: {where}: {error.strerror or error}", file=sys.stderr)
        sys.exit(FAILED)
    except UnicodeEncodeError as error:
        what, part = "standard output", error.object[error.start : error.end]
        todo = "set PYTHONIOENCODING=utf-8"
        if any("\ud800" <= c <= "\udfff" for c in part):  # how Python passes on bytes that are not UTF-8
            what, todo = "an argument", "give text in UTF-8"
        print(f"error: {what} cannot take {part!r:.100}\nhint: {todo}", file=sys.stderr)
        sys.exit(USAGE)


def _drop_output() -> None:
    """What is buffered cannot be written, and must not be tried again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # tests replace the stream by one without a descriptor
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class Commands(TyperGroup):
    """The top-level group. It turns EscrowMQ's errors into text and exit codes for all commands."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            with writing_out():
                return super().invoke(ctx)
        except EscrowMQError as error:
            print(explain(error), file=sys.stderr)
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
