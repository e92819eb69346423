"""When a delayed message becomes readable: what callers say, as requests carry it.

Requests carry one number, in ms: from 0 on it is a time since the epoch, a negative one is a delay. A delay
is counted by the broker, from the message's entry in the log or from its transaction's commit, so a client's
wrong clock makes nothing early. Both are rounded up: a message is never readable before the time that was
given.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

from escrowmq.replication.errors import InvalidMessage

#: A message may wait for ten years, as a transaction may.
DELAY_MS_MAX = 10 * 366 * 86_400_000
_DELAY_S_MAX = DELAY_MS_MAX // 1000
_NUMBERS = frozenset((int, float))
#: The number for a message that is not delayed, where others are.
AT_ONCE = 0
#: A smaller number of ms is before March 1973: it is a number of seconds.
_SECONDS_BELOW_MS = 100_000_000_000
#: A higher number is shown as this one: Python writes none of thousands of digits.
_SHOWN_MAX = 10**20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def delivery_time(delay_s: object, deliver_at: object) -> int:
    """The number for a request; at least one of the two is not None. Raises InvalidMessage."""
    if delay_s is not None:
        if deliver_at is not None:
            raise InvalidMessage("give delay_s or deliver_at, not both")
        return -_delay_ms(delay_s)
    return _time_ms(deliver_at)


def given_by(time_ms: int) -> dict[str, Any]:
    """Arguments of a ``Message`` for such a number; none for ``AT_ONCE``."""
    if time_ms == AT_ONCE:
        return {}
    return {"deliver_at": time_ms} if time_ms > 0 else {"delay_s": -time_ms / 1000}


def check_not_too_far(time_ms: int, now_ms: float) -> int:
    """Returns a number of :func:`delivery_time`; raises InvalidMessage if it is more than ten years after
    ``now_ms``."""
    if time_ms > now_ms + DELAY_MS_MAX:  # in this form also for a number that fits into no float
        raise InvalidMessage(
            f"deliver_at {min(time_ms, _SHOWN_MAX)} is more than ten years ahead; give an earlier time, in ms"
        )
    return time_ms


def effective_time(time_ms: int, since_ms: int) -> int:
    """The time since the epoch that such a number means, in ms. ``since_ms``: what a delay is counted from.
    A delay of 0 s is the number 0."""
    return time_ms if time_ms > 0 else since_ms - time_ms


def _delay_ms(delay_s: Any) -> int:
    # The usual case in few steps: a producer has some microseconds for a message.
    if type(delay_s) not in _NUMBERS or not 0 <= delay_s <= _DELAY_S_MAX:
        _check_delay(delay_s)
    exact: float = delay_s * 1000
    whole = int(exact)
    if whole == exact:
        return whole
    return math.ceil(round(exact, 6))  # rounded first: 0.029 * 1000 is a little more than 29


def _check_delay(delay_s: object) -> None:
    if isinstance(delay_s, bool) or not isinstance(delay_s, int | float):
        raise InvalidMessage(f"delay_s must be a number of seconds, not {delay_s!r:.80}")
    if not 0 <= delay_s < math.inf:  # NaN too
        raise InvalidMessage(f"delay_s must be a number of seconds from 0 on, not {delay_s!r}")
    if delay_s > _DELAY_S_MAX:
        shown = min(delay_s, _SHOWN_MAX)
        raise InvalidMessage(f"delay_s must be at most {_DELAY_S_MAX} (ten years), not {shown!r}")


def _time_ms(deliver_at: object) -> int:
    if isinstance(deliver_at, datetime):
        if deliver_at.utcoffset() is None:
            raise InvalidMessage(
                f"deliver_at {deliver_at} has no time zone; add one, such as datetime(..., tzinfo=UTC)"
            )
        return max(-((_EPOCH - deliver_at) // _MS), _SECONDS_BELOW_MS)  # earlier is past, too
    if type(deliver_at) is not int:
        raise InvalidMessage(
            "deliver_at must be a datetime with a time zone, or an int of ms since the epoch, not "
            f"{deliver_at!r:.80}"
        )
    if deliver_at < 0:
        raise InvalidMessage(f"deliver_at must be ms since the epoch, from 0 on, not {deliver_at}")
    if deliver_at < _SECONDS_BELOW_MS:
        raise InvalidMessage(f"deliver_at is in ms since the epoch, and {deliver_at} looks like seconds")
    return deliver_at
