"""Records calls of the project's own functions, by thread, with the interpreter's profile hook.

A call is an entry into a Python function whose file is in one of the project's folders; resuming a coroutine
counts as another entry. Comprehensions do not count as calls (in Python 3.12 they are part of the surrounding
function), nor do functions without a file, such as those of dataclasses. A change of file is a call from a
function in another file, with any number of standard-library calls in between, or from outside the project
(an event loop, a thread's start).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_PARTS_OF_FUNCTIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``caller``: the file of its caller, None if outside the project; ``at``: time.monotonic()."""

    thread: str
    file: str
    function: str
    caller: str | None
    at: float

    @property
    def changes_file(self) -> bool:
        return self.caller != self.file


class Recorder:
    """Records while ``on``, but not in threads that were started before ``install``."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """``folders``: whose files are counted. A file's name is its folder's name and its path inside."""
        self.on = False
        self.calls: list[Call] = []
        self._folders = [folder.resolve() for folder in folders]
        self._names: dict[str, str | None] = {}

    def install(self) -> None:
        """Observe this thread and all threads started from now on."""
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def remove(self) -> None:
        """Stop observing this thread and new ones. Running threads keep the hook, which is switched off."""
        self.on = False
        sys.setprofile(None)
        threading.setprofile(None)

    def start(self) -> None:
        """Discard what was recorded, and start recording."""
        self.calls = []
        self.on = True

    def rest(self, quiet_s: float, patience_s: float = 5.0) -> None:
        """Wait until no call has come for ``quiet_s``. Raises TimeoutError."""
        deadline = time.monotonic() + patience_s
        seen, since = len(self.calls), time.monotonic()
        while time.monotonic() - since < quiet_s:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the project's functions are still being called after {patience_s:g} s")
            time.sleep(quiet_s / 10)
            if len(self.calls) != seen:
                seen, since = len(self.calls), time.monotonic()

    def stop(self) -> list[Call]:
        """Stop recording; returns the recorded calls in order."""
        self.on = False
        return self.calls

    def _hook(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not self.on:
            return
        code = frame.f_code
        file = self._name(code.co_filename)
        if file is None or code.co_name in _PARTS_OF_FUNCTIONS:
            return
        caller, back = None, frame.f_back
        while back is not None and caller is None:
            caller, back = self._name(back.f_code.co_filename), back.f_back
        thread = threading.current_thread().name
        self.calls.append(Call(thread, file, code.co_qualname, caller, time.monotonic()))

    def _name(self, path: str) -> str | None:
        if path not in self._names:
            self._names[path] = self._name_of(Path(path).resolve())
        return self._names[path]

    def _name_of(self, path: Path) -> str | None:
        for folder in self._folders:
            if path.is_relative_to(folder):
                return f"{folder.name}/{path.relative_to(folder)}"
        return None


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts for one role, or for all."""

    calls: int
    files: int
    changes: int

    @classmethod
    def of(cls, calls: Iterable[Call]) -> Tally:
        calls = list(calls)
        changes = sum(call.changes_file for call in calls)
        return cls(len(calls), len({call.file for call in calls}), changes)


def by_role(calls: Iterable[Call], role_of: Callable[[str], str]) -> dict[str, list[Call]]:
    """The calls of each role, in order. ``role_of(thread)`` returns a thread's role."""
    roles: dict[str, list[Call]] = {}
    known: dict[str, str] = {}
    for call in calls:
        if call.thread not in known:
            known[call.thread] = role_of(call.thread)
        roles.setdefault(known[call.thread], []).append(call)
    return roles


def tree(calls: Iterable[Call]) -> dict[str, dict[str, int]]:
    """file -> function -> number of calls; both in the order in which they were first called."""
    found: dict[str, dict[str, int]] = {}
    for call in calls:
        functions = found.setdefault(call.file, {})
        functions[call.function] = functions.get(call.function, 0) + 1
    return found
