"""Answers about single messages: what a search found, and where a message came from."""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.calling.carried_answers import Carried, prepare


class FoundRows(Carried, frozen=True):
    """What a replica found in ``[start, reached)`` of one partition, in order of offsets.

    ``code``: a ResultCode; with OTHER_TOPIC ``end`` is the id of the topic that has the name, otherwise the
    partition's end at this replica. ``rows`` are for ``codec.decode_rows``, one by one. Ask again from
    ``reached`` on.
    """

    code: int = 0
    end: int = 0
    reached: int = 0
    offsets: Sequence[int] = ()
    times_ms: Sequence[int] = ()
    rows: Sequence[bytes] = ()


class MessageOrigin(Carried, frozen=True, kw_only=True):
    """The entry that made a message readable. Times in ms since the epoch.

    ``how``: "sent" (a plain message), "committed" (COMMIT of its transaction), "released" (a delayed
    message came due). ``index``: of that entry in the group's log. ``stored_ms``: the time of the entry with
    the message itself, an earlier one for transactions and delayed messages; None: its row was copied, and
    that entry may be gone. ``app``, ``by``: of the COMMIT; "": there is none, or not known.
    """

    how: str
    index: int
    stored_ms: int | None = None
    app: str = ""
    by: str = ""


class ShareProgress(Carried, frozen=True):
    """What a group has done with a message, by what was written of it. Times in ms since the epoch.

    ``state``: "waiting" (not finished, and no consumer has it), "leased" (``member`` has it until ``due_ms``,
    unless it extends its lease; as ``attempt``, if that is a later one than the first), "retrying" (a copy is
    to be delivered again, as ``attempt``, from ``due_ms`` on), "done", "dead" (given up; the dead letter is
    kept), "dropped" (an operator dropped that), "redriven" (into the topic ``to``, by transaction ``tx_id``;
    both "": not known), "settled" (dropped or redriven, and it is not known which), "finished" (done,
    retrying or dead: the group's copies could not all be looked through in time).
    """

    group: str
    state: str
    attempt: int | None = None
    due_ms: int | None = None
    reason: str = ""
    member: str = ""
    to: str = ""
    tx_id: str = ""


class MessageAt(Carried, frozen=True, kw_only=True):
    """One message. ``code``: a ResultCode; with OUT_OF_RANGE, ``start`` and ``end`` say what there is; with
    OTHER_TOPIC ``end`` is the id of the topic that has the name. ``row`` b"": what was stored there is no
    message. ``origin``: if it was asked for; None: that entry is not in the log."""

    code: int = 0
    start: int = 0
    end: int = 0
    time_ms: int = 0
    row: bytes = b""
    origin: MessageOrigin | None = None


prepare(__name__)
