"""What the checker remembers while it reads a history: one record per message, transaction, partition.

Nothing here grows with the number of reads, only with what was sent.
"""

from __future__ import annotations

from tests.history.events import Event, Sent

COMMITTED, ROLLBACK = "COMMITTED", "ROLLBACK"
NEVER = 1 << 62


class Tx:
    """One transaction: who wanted what, what was told, what was seen."""

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
        "seen",
        "stored",
        "told",
        "tx",
    )

    def __init__(self, app: str, tx: str) -> None:
        self.app, self.tx = app, tx
        self.ids: list[str] = []
        self.event: Event | None = None  # the first prepare
        self.prepares = 0  # attempts that may have had an effect
        self.prepared = False
        self.live = {COMMITTED: 0, ROLLBACK: 0}  # decisions asked for that may have had an effect
        self.operators: set[str] = set()  # outcomes that an operator asked for
        self.told: dict[str, Event] = {}  # recorded outcomes as the broker told them
        self.granted: set[str] = set()  # outcomes that were asked for and acknowledged as such
        self.invoked_at = NEVER  # the first commit
        self.acked_at = NEVER  # the first time that COMMITTED was told
        self.outcome: str | None = None  # the last answer of the broker to a mere question
        self.forgotten: Event | None = None  # it was prepared, or decided, and then it was UNKNOWN
        self.local: str | None = None
        self.stored: bool | None = None  # what the application's fenced database holds; None: not told
        self.early: Event | None = None  # read when nobody had asked for a commit
        self.branches: dict[int, Event] = {}  # broker group -> its last answer, where home is another one
        self.checks = 0  # how often a producer was asked about it
        self.again: dict[str, tuple[str, int, int]] = {}  # messages that were read at a second place, too
        self.seen = 0

    def __str__(self) -> str:
        return f"transaction {self.app}/{self.tx}"


class Send:
    """Plain messages that were sent in one operation, and its retries."""

    __slots__ = ("acked_at", "attempts", "event", "ids", "invoked_at", "ok", "places", "producer")

    def __init__(self, producer: str, event: Event) -> None:
        self.producer, self.event = producer, event
        self.ids: list[str] = []
        self.attempts = 0  # that may have had an effect
        self.ok = False
        self.invoked_at, self.acked_at = event.at, NEVER
        self.places: list[tuple[str, int, int]] | None = None

    def __str__(self) -> str:
        return f"a send of {self.producer}"


class Message:
    """One message: whose it is, its number among that owner's, and where it was read first."""

    __slots__ = ("number", "owner", "place", "sent")

    def __init__(self, sent: Sent, owner: Tx | Send, number: int) -> None:
        self.sent, self.owner, self.number = sent, owner, number
        self.place: tuple[str, int, int] | None = None


class Partition:
    """What stands where, by whoever read it first, and how far complete reads went."""

    __slots__ = ("at", "end", "start")

    def __init__(self) -> None:
        self.at: dict[int, str] = {}
        self.start = 0  # retention had removed what is before
        self.end: int | None = None  # of the longest complete read


class Cut:
    """The reads of one stable cut: ranges of partitions, and the transactions seen in them."""

    __slots__ = ("event", "ids", "name", "ranges")

    def __init__(self, name: str, event: Event) -> None:
        self.name, self.event = name, event
        self.ranges: dict[tuple[str, int], tuple[int, int]] = {}
        self.ids: dict[Tx, list[str]] = {}
