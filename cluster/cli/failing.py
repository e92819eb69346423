"""How commands report failure: a line with what is wrong, a line with what to do, and an exit code.

EscrowMQ's error texts have the form "what is wrong; what to do"; they are split into the two lines at the
first semicolon. There are only a few exit codes, so that scripts can tell "try again later" from "never".
"""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from escrowmq.feedback.database.errors import DatabaseMisused
from escrowmq.feedback.database.outbox_errors import OutboxBehind, OutboxRowBusy, UnknownOutboxRow
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


class Commands(TyperGroup):
    """The top-level group. It turns EscrowMQ's errors into text and exit codes for all commands."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except EscrowMQError as error:
            print(explain(error), file=sys.stderr)
            raise typer.Exit(exit_code(error)) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # `escrowmq consume ... | head`: the reader has closed the pipe
            sys.stderr.close()
            raise typer.Exit(0) from None
        except OSError as error:  # a file that the user named, or the profiles, cannot be read or written
            if error.filename is None:
                raise
            print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
            raise typer.Exit(FAILED) from None
