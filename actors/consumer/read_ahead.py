"""Which fetches of a range are under way, and which come next. Decides only: no call, no clock, no thread.

Where the answer to a fetch ends depends on the sizes of messages, so without help the next fetch could be
sent only once the previous answer has come. A broker can tell from its index where the next answers will end
(``fetch_ends``), and then several fetches are under way at once. That information is only a hint: replicas
may have cut their runs in different places, and retention may remove data meanwhile. If an answer is shorter
than expected, its rest is requested again; if it is longer, it is cut; without the hint, one fetch at a time
is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: (the broker's answer for the partition, None, replica), or (None, error or None for silence, replica).
FetchAnswer = tuple[Any, BaseException | None, int]


@dataclass(slots=True)
class Piece:
    """A fetch under way for ``[offset, until)``; ``rid``: the replica asked last, in turn ``turn``."""

    offset: int
    until: int
    #: Token -> replica, for every replica asked: a silent one may still be the first to answer.
    tokens: dict[int, int] = field(default_factory=dict)
    rid: int = 0
    turn: int = 0
    ask_again_at: float = 0.0
    #: Answers that came before this piece was the first.
    answers: deque[FetchAnswer] = field(default_factory=deque)


#: ``ask(offset, until)`` sends a fetch.
AskPiece = Callable[[int, int], Piece]


class ReadAhead:
    """The pieces of one range, in order. All but the last end where a fetch was predicted to end.

    The function that sends fetches is passed in each time: if it were stored here, reader and pieces would
    keep each other in memory, and with them the answers that were never read.
    """

    def __init__(self, end: int, in_flight: int) -> None:
        self._end, self._in_flight = end, in_flight
        self._pieces: deque[Piece] = deque()
        self._ends: deque[int] = deque()

    def begin(self, start: int, ask: AskPiece) -> None:
        self._pieces.append(ask(start, self._end))

    def clear(self) -> None:
        """Forgets everything; answers that come later are dropped."""
        self._pieces.clear()
        self._ends.clear()

    @property
    def first(self) -> Piece | None:
        """The piece to be read now."""
        return self._pieces[0] if self._pieces else None

    def received(self, reached: int, ask: AskPiece) -> None:
        """The answer to the first piece reaches up to ``reached``."""
        piece = self._pieces.popleft()
        if reached < piece.until:
            self._pieces.appendleft(ask(reached, piece.until))

    def ends_wanted(self) -> int | None:
        """From which offset on to ask where fetches end, before the known ends are used up; None: not now."""
        if not self._pieces or self._in_flight == 1 or len(self._ends) >= self._in_flight:
            return None
        known = self._ends[-1] if self._ends else self._pieces[-1].offset
        return known if known < self._end else None

    def learn(self, ends: Sequence[int]) -> None:
        """Takes the ends of the fetches from an earlier ``ends_wanted`` on."""
        for end in ends:
            if not self._ends or end > self._ends[-1]:
                self._ends.append(end)

    def extend(self, ask: AskPiece) -> None:
        """Requests what comes next, as far as its start is known."""
        while self._pieces and len(self._pieces) < self._in_flight:
            last = self._pieces[-1]
            while self._ends and self._ends[0] <= last.offset:
                self._ends.popleft()
            if not self._ends or self._ends[0] >= self._end:
                return
            last.until = self._ends.popleft()
            self._pieces.append(ask(last.until, self._end))

    def take(self, token: int, answer: Any, error: BaseException | None) -> None:
        """Keeps an answer for the piece that asked; a late answer to an earlier request is dropped."""
        for piece in self._pieces:
            if token in piece.tokens:
                rid = piece.tokens.pop(token)
                piece.answers.append((None if error is not None else answer[0], error, rid))
                return
