"""Records the calls of the project's own functions, thread by thread, with the interpreter's profile hook.

A call is an entry into a Python function whose file lies in one of the project's folders; a coroutine that is
resumed is entered again. Comprehensions are no calls (Python 3.12 has made them part of the function around
them), nor are functions without a file, as dataclasses have. A change of file is a call that comes from a
function of another file, however many calls of the standard library lie between, or from no function of ours
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
    """One call. ``caller``: the file it came from, None if from outside; ``at``: time.monotonic() then."""

    thread: str
    file: str
    function: str
    caller: str | None
    at: float

    @property
    def changes_file(self) -> bool:
        return self.caller != self.file


class Recorder:
    """Records while ``on``. Threads that were started before ``install`` are not seen."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """``folders``: those whose files count. A file is named by its folder and the path in there."""
        self.on = False
        self.calls: list[Call] = []
        self._folders = [folder.resolve() for folder in folders]
        self._names: dict[str, str | None] = {}

    def install(self) -> None:
        """From now on see this thread, and those that are started from now on."""
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def remove(self) -> None:
        """See nothing more in this thread, nor in new ones; threads that run keep the hook, which is off."""
        self.on = False
        sys.setprofile(None)
        threading.setprofile(None)

    def start(self) -> None:
        """Forget what was recorded, and record."""
        self.calls = []
        self.on = True

    def rest(self, quiet_s: float, patience_s: float = 5.0) -> None:
        """Wait until no call has come for ``quiet_s``. Raises TimeoutError."""
        deadline = time.monotonic() + patience_s
        seen, since = len(self.calls), time.monotonic()
        while time.monotonic() - since < quiet_s:
            if time.monotonic() > deadline:
                raise TimeoutError(f"calls of the project still come after {patience_s:g} s")
            time.sleep(quiet_s / 10)
            if len(self.calls) != seen:
                seen, since = len(self.calls), time.monotonic()

    def stop(self) -> list[Call]:
        """What was recorded, in the order of the calls."""
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
    """What was counted for one role, or for all."""

    calls: int
    files: int
    changes: int

    @classmethod
    def of(cls, calls: Iterable[Call]) -> Tally:
        calls = list(calls)
        changes = sum(call.changes_file for call in calls)
        return cls(len(calls), len({call.file for call in calls}), changes)


def by_role(calls: Iterable[Call], role_of: Callable[[str], str]) -> dict[str, list[Call]]:
    """The calls of each role, in order; ``role_of(thread)`` names it."""
    roles: dict[str, list[Call]] = {}
    known: dict[str, str] = {}
    for call in calls:
        if call.thread not in known:
            known[call.thread] = role_of(call.thread)
        roles.setdefault(known[call.thread], []).append(call)
    return roles


def tree(calls: Iterable[Call]) -> dict[str, dict[str, int]]:
    """file -> function -> how often it was called; both in the order in which they were first reached."""
    found: dict[str, dict[str, int]] = {}
    for call in calls:
        functions = found.setdefault(call.file, {})
        functions[call.function] = functions.get(call.function, 0) + 1
    return found
