"""Finds every container in the product's objects, at any depth, by the class and attribute that hold it.

So a new queue or table is found automatically. What depends only on the class is computed once per class:
there are thousands of objects, and they are examined repeatedly.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from functools import cache
from operator import attrgetter
from typing import Any

PRODUCT = "escrowmq."
CONTAINERS = (dict, list, set, deque)
#: What to do with an object of a class: nothing, count its elements, or look into it.
NOTHING, COUNT, LOOK_INTO = range(3)
NO_NAMES: dict[str, Any] = {}


def sizes(*roots: Any) -> Counter[str]:
    """``Class.attribute`` -> number of elements. ``Class.attribute[]`` is the total in the containers that it
    holds, and ``Class.attribute idle`` the number of its empty containers and zero counts."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting, whats = list(roots), _WHATS
    while waiting:
        owner = waiting.pop()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        shape = _shape(type(owner))
        for path, value in shape.slots_of(owner):
            if what := whats[type(value)]:
                if what == COUNT:
                    _count(path, value, found, waiting)
                else:
                    waiting.append(value)
        for name, value in getattr(owner, "__dict__", NO_NAMES).items():
            if what := whats[type(value)]:
                if what == COUNT:
                    _count(shape.paths[name], value, found, waiting)
                else:
                    waiting.append(value)
    return found


def _count(path: str, value: Any, found: Counter[str], waiting: list[Any]) -> None:
    """Count a container's elements, and queue the product's objects in it for examination."""
    found[path] += len(value)
    if not value:
        return
    by_key = isinstance(value, dict)
    values = value.values() if by_key else value
    kinds = set(map(type, values))
    if not any(map(_WHATS.__getitem__, kinds)):
        if by_key and int in kinds:
            # If all values are int, those equal to zero are zero; otherwise they may be False.
            idle = list(values).count(0) if len(kinds) == 1 else sum(type(v) is int and not v for v in values)
            if idle:
                found[f"{path} idle"] += idle
        return
    for item in values:
        what = _WHATS[type(item)]
        if by_key and not item and (what == COUNT or type(item) is int):
            found[f"{path} idle"] += 1
        if what == COUNT:
            _count(f"{path}[]", item, found, waiting)
        elif what == LOOK_INTO:
            waiting.append(item)


class _Whats(dict[type, int]):
    """Class -> what to do with its objects."""

    def __missing__(self, kind: type) -> int:
        if issubclass(kind, CONTAINERS):
            what = COUNT
        elif kind.__module__.startswith(PRODUCT) and not issubclass(kind, tuple):
            what = LOOK_INTO
        else:
            what = NOTHING
        self[kind] = what
        return what


_WHATS = _Whats()


class _Paths(dict[str, str]):
    """Attribute of one class -> its path in the report."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self._kind = kind.__name__

    def __missing__(self, name: str) -> str:
        path = self[name] = f"{self._kind}.{name}"
        return path


class _Shape:
    """What depends only on the class: the paths of its attributes, and its slots."""

    def __init__(self, kind: type) -> None:
        self.paths = _Paths(kind)
        names: list[str] = []
        for each in kind.__mro__:
            slots = each.__dict__.get("__slots__", ())
            names += (slots,) if isinstance(slots, str) else slots
        self._names = [name for name in names if name not in ("__dict__", "__weakref__")]
        self._paths = [self.paths[name] for name in self._names]
        self._read = (
            attrgetter(*self._names) if len(self._names) > 1 else None
        )  # with one name it returns no tuple

    def slots_of(self, owner: Any) -> Iterable[tuple[str, Any]]:
        """Path and value of each set slot."""
        if self._read is not None:
            try:
                return zip(self._paths, self._read(owner), strict=True)
            except AttributeError:
                pass
        return [(self.paths[n], getattr(owner, n)) for n in self._names if hasattr(owner, n)]


_shape = cache(_Shape)
