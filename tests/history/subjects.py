"""The checker's memory while it reads a history: one record per message, transaction and partition.

It grows with what was sent, not with the number of reads.
"""

from __future__ import annotations

from tests.history.events import Event, Sent

COMMITTED, ROLLBACK = "COMMITTED", "ROLLBACK"
NEVER = 1 << 62


class Tx:
    """One transaction: the decisions that were requested, the answers, and the reads of its messages."""

    __slots__ = (
        "acked_at",
        "again",
        "app",
        "branches",
        "checks",
        "early",
        "event",
        "forgotten",
        "granted",
        "ids",
        "invoked_at",
        "live",
        "local",
        "operators",
        "outcome",
        "prepared",
        "prepares",
        "refused_at",
        "seen",
        "stored",
        "stored_by",
        "told",
        "tx",
    )

    def __init__(self, app: str, tx: str) -> None:
        self.app, self.tx = app, tx
        self.ids: list[str] = []
        self.event: Event | None = None  # the first prepare
        self.prepares = 0  # attempts that may have had an effect
        self.prepared = False
        self.live = {COMMITTED: 0, ROLLBACK: 0}  # requested decisions that may have had an effect
        self.operators: set[str] = set()  # outcomes that an operator requested
        self.told: dict[str, Event] = {}  # recorded outcomes as the broker reported them
        self.granted: set[str] = set()  # outcomes that were requested and acknowledged
        self.invoked_at = NEVER  # the first commit
        self.acked_at = NEVER  # when COMMITTED was first reported
        self.stored_by = NEVER  # when its messages were certainly stored: it was prepared, or committed
        self.refused_at = NEVER  # when it was refused because of an earlier topic, and not sent again
        self.outcome: str | None = None  # the broker's last answer to a question for the outcome
        self.forgotten: Event | None = None  # an answer UNKNOWN after it was prepared or decided
        self.local: str | None = None
        self.stored: bool | None = None  # whether the application's fenced database has it; None: not known
        self.early: Event | None = None  # read before any commit was requested
        self.branches: dict[int, Event] = {}  # broker group (not the home group) -> its last answer
        self.checks = 0  # how often a producer was asked about it
        self.again: dict[str, tuple[str, int, int]] = {}  # messages that were also read at a second place
        self.seen = 0

    def __str__(self) -> str:
        return f"transaction {self.app}/{self.tx}"


class Send:
    """Plain messages sent in one operation and its retries."""

    __slots__ = (
        "acked_at",
        "attempts",
        "event",
        "ids",
        "invoked_at",
        "ok",
        "places",
        "producer",
        "refused_at",
    )

    def __init__(self, producer: str, event: Event) -> None:
        self.producer, self.event = producer, event
        self.ids: list[str] = []
        self.attempts = 0  # that may have had an effect
        self.ok = False
        self.invoked_at, self.acked_at, self.refused_at = event.at, NEVER, NEVER
        self.places: list[tuple[str, int, int]] | None = None

    @property
    def stored_by(self) -> int:
        return self.acked_at

    def __str__(self) -> str:
        return f"a send of {self.producer}"


class Message:
    """One message: its owner, its number among the owner's messages, and where it was first read."""

    __slots__ = ("number", "owner", "place", "sent")

    def __init__(self, sent: Sent, owner: Tx | Send, number: int) -> None:
        self.sent, self.owner, self.number = sent, owner, number
        self.place: tuple[str, int, int] | None = None


class Partition:
    """The message at each offset, as first read, and the range of complete reads."""

    __slots__ = ("at", "end", "start")

    def __init__(self) -> None:
        self.at: dict[int, str] = {}
        self.start = 0  # retention had removed the messages before
        self.end: int | None = None  # end of the longest complete read


class Cut:
    """The reads of one stable cut: ranges of partitions, and the transactions seen in them."""

    __slots__ = ("event", "ids", "name", "ranges")

    def __init__(self, name: str, event: Event) -> None:
        self.name, self.event = name, event
        self.ranges: dict[tuple[str, int], tuple[int, int]] = {}
        self.ids: dict[Tx, list[str]] = {}
