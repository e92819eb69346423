"""Arguments of producers' calls to a feedback process, all of them checked before anything is kept.

The process is shared by all producers of many apps, so one malformed value in its tables would end the polls
of all of them. The sender of one gets InvalidMessage, which names the argument; nothing has changed.
"""

from __future__ import annotations

from typing import Any

from escrowmq.feedback.asking.live_producers import CheckKey
from escrowmq.feedback.policy import Trouble
from escrowmq.replication.errors import InvalidMessage
from escrowmq.replication.format.codec import FENCE_BYTES
from escrowmq.replication.model import TransactionState
from escrowmq.replication.replica.validation import GROUPS_MAX, NAME_BYTES_MAX

#: Checks that a producer can take or work on at a time, and answers in one call: far above any real number.
CHECKS_MAX = 1_000_000
ANSWERS_MAX = 10_000

#: (group, topic) that a check is from, and transaction id.
PlacedKey = tuple[tuple[int, str], str]
#: A check under one PREPARE: its key, and the log index of the transaction's newest PREPARE (0: not told).
AskedCheck = tuple[CheckKey, int]
PlacedCheck = tuple[PlacedKey, int]
PlacedAnswer = tuple[PlacedKey, TransactionState, Trouble, int]


def app_of(value: Any) -> str:
    """The name of an app."""
    return _text("app", value, NAME_BYTES_MAX)


def instance_of(value: Any) -> str:
    """The name of a producer instance."""
    return _text("instance", value, NAME_BYTES_MAX)


def room_of(value: Any) -> int:
    """How many checks the producer accepts now."""
    if type(value) is not int or not 0 <= value <= CHECKS_MAX:
        raise InvalidMessage(f"room must be a whole number from 0 to {CHECKS_MAX}, not {_shown(value)}")
    return value


def working_of(value: Any) -> list[PlacedCheck]:
    """The checks that it works on: ((group, topic), transaction id, index of the PREPARE) for each."""
    rows = _rows("working", value, 3, CHECKS_MAX)
    return [(_key("working", place, tx_id), _index("working", index)) for place, tx_id, index in rows]


def fence_of(value: Any) -> bytes:
    """The name of the table that the producer answers from; empty: none."""
    if type(value) is not bytes or len(value) not in (0, FENCE_BYTES):
        raise InvalidMessage(f"fence must have {FENCE_BYTES} bytes, or none, not {_shown(value)}")
    return value


def idle_of(value: Any) -> bool:
    """Whether a producer that leaves runs no local transaction any more."""
    if type(value) is not bool:
        raise InvalidMessage(f"idle must be True or False, not {_shown(value)}")
    return value


def wait_of(value: Any) -> float:
    """How long a poll may wait, in seconds."""
    if type(value) not in (int, float) or not value >= 0:  # not "value < 0", which is False for NaN
        raise InvalidMessage(f"wait_s must be a number of seconds, 0 or more, not {_shown(value)}")
    return float(min(value, 1e9))


def answers_of(value: Any) -> list[PlacedAnswer]:
    """Answers: ((group, topic), transaction id, state, trouble, index of the PREPARE) for each."""
    found = []
    for place, tx_id, state, trouble, index in _rows("answers", value, 5, ANSWERS_MAX):
        try:
            said = TransactionState(state), Trouble(trouble)
        except (ValueError, TypeError):  # TypeError: it is not even hashable
            raise InvalidMessage(
                f"answers must hold a state and a trouble by name, not {_shown(state)}, {_shown(trouble)}"
            ) from None
        found.append((_key("answers", place, tx_id), *said, _index("answers", index)))
    return found


def _rows(name: str, value: Any, columns: int, rows_max: int) -> Any:
    if type(value) not in (list, tuple) or len(value) > rows_max:
        raise InvalidMessage(f"{name} must be a list of at most {rows_max}, not {_shown(value)}")
    for row in value:
        if type(row) not in (list, tuple) or len(row) != columns:
            raise InvalidMessage(f"{name} must hold tuples of {columns}, not {_shown(row)}")
    return value


def _key(name: str, place: Any, tx_id: Any) -> PlacedKey:
    if type(place) not in (list, tuple) or len(place) != 2:
        raise InvalidMessage(f"{name} must name a group and a topic, not {_shown(place)}")
    gid, topic = place
    if type(gid) is not int or not 0 <= gid < GROUPS_MAX:
        raise InvalidMessage(f"{name} must name a group by its number, not {_shown(gid)}")
    topic = _text(f"a topic in {name}", topic, NAME_BYTES_MAX)
    return (gid, topic), _text(f"a transaction id in {name}", tx_id, NAME_BYTES_MAX)


def _index(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InvalidMessage(f"{name} must name a log index, not {_shown(value)}")
    return value


def _text(name: str, value: Any, characters_max: int) -> str:
    if type(value) is not str or not 0 < len(value) <= characters_max:
        raise InvalidMessage(f"{name} must be 1 to {characters_max} characters, not {_shown(value)}")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise InvalidMessage(f"{name} must be text that UTF-8 can hold, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A short text for any value."""
    if type(value) in (str, int, float, bool, type(None)):
        text = ascii(value) if type(value) is not int or value.bit_length() < 200 else "a huge number"
        return text if len(text) <= 60 else text[:57] + "..."
    size = f" of {len(value)}" if type(value) in (list, tuple, dict, bytes) else ""
    return f"{type(value).__name__}{size}"
