"""Every container that an object of the product holds, however deep, by the class and attribute that hold it.

So that a new queue or table is noticed by itself, and not only if somebody thinks of it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from functools import cache
from typing import Any

PRODUCT = "escrowmq."
CONTAINERS = (dict, list, set, deque)
PLAIN = frozenset((int, str, bytes, float, tuple))  # what holds nothing that is looked into


def sizes(*roots: Any) -> Counter[str]:
    """``Class.attribute`` -> elements; ``Class.attribute[]`` are those of the containers in it together, and
    ``Class.attribute idle`` are its values that say nothing: empty containers, and counts of zero."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        for name, value in _attributes(owner):
            waiting += _look(f"{type(owner).__name__}.{name}", value, found)
    return found


def _look(path: str, value: Any, found: Counter[str]) -> list[Any]:
    """Count what ``value`` holds; the objects of the product in it, to be looked into."""
    if isinstance(value, CONTAINERS):
        found[path] += len(value)
        inside: list[Any] = []
        for item in value.values() if isinstance(value, dict) else value:
            kind = type(item)
            if kind in PLAIN and item:
                continue
            if isinstance(value, dict) and kind in (*CONTAINERS, int) and not item:
                found[f"{path} idle"] += 1
            if isinstance(item, CONTAINERS):
                inside += _look(f"{path}[]", item, found)
            elif _is_ours(item):
                inside.append(item)
        return inside
    return [value] if _is_ours(value) else []


def _is_ours(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.startswith(PRODUCT) and not isinstance(value, tuple)


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(owner, "__dict__", {}).items()
    for name in _slots(type(owner)):
        if hasattr(owner, name):
            yield name, getattr(owner, name)


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """Names of the slots of a class and of those it derives from."""
    names: list[str] = []
    for each in kind.__mro__:
        slots = each.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
