"""The walk is counted right: a small known one, and a real PREPARE passes every part it must pass."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.walk.recorder import Call, Recorder, Tally, by_role, tree
from benchmarks.walk.steps import TOTAL, stage

UPPER = """
def enter(lower):
    return [lower.twice(n) for n in range(2)]

"""
LOWER = """
def twice(n):
    return add(n, n)

def add(a, b):
    return a + b
"""


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    recorder = Recorder([tmp_path / "ours"])
    recorder.install()
    yield recorder
    recorder.remove()


@pytest.fixture
def modules(tmp_path: Path) -> dict[str, ModuleType]:
    """Two of ours, and a copy of the lower one that is not."""
    files = {"ours/upper.py": UPPER, "ours/room/lower.py": LOWER, "others/lower.py": LOWER}
    return {path: _module(tmp_path / path, text) for path, text in files.items()}


def _module(path: Path, text: str) -> ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _steps(calls: list[Call]) -> list[tuple[str, str, str | None]]:
    return [(call.file, call.function, call.caller) for call in calls]


def test_calls_are_recorded_with_the_file_they_come_from(
    recorder: Recorder, modules: dict[str, ModuleType]
) -> None:
    recorder.start()
    modules["ours/upper.py"].enter(modules["ours/room/lower.py"])
    calls = recorder.stop()
    once = [
        ("ours/room/lower.py", "twice", "ours/upper.py"),
        ("ours/room/lower.py", "add", "ours/room/lower.py"),
    ]
    assert _steps(calls) == [("ours/upper.py", "enter", None), *once, *once]
    assert Tally.of(calls) == Tally(calls=5, files=2, changes=3)
    assert tree(calls) == {"ours/upper.py": {"enter": 1}, "ours/room/lower.py": {"twice": 2, "add": 2}}


def test_other_peoples_functions_do_not_count(recorder: Recorder, modules: dict[str, ModuleType]) -> None:
    recorder.start()
    modules["ours/upper.py"].enter(modules["others/lower.py"])
    assert _steps(recorder.stop()) == [("ours/upper.py", "enter", None)]


def test_nothing_is_recorded_before_the_start_and_after_the_stop(
    recorder: Recorder, modules: dict[str, ModuleType]
) -> None:
    lower = modules["ours/room/lower.py"]
    lower.twice(1)
    recorder.start()
    lower.add(1, 2)
    calls = recorder.stop()
    lower.twice(1)
    assert _steps(calls) == [("ours/room/lower.py", "add", None)]


def test_threads_are_told_apart_by_their_names(recorder: Recorder, modules: dict[str, ModuleType]) -> None:
    lower = modules["ours/room/lower.py"]
    recorder.start()
    for name in ("raft-0", "raft-1"):
        thread = threading.Thread(target=lower.twice, args=(1,), name=name)
        thread.start()
        thread.join()
    roles = by_role(recorder.stop(), {"raft-0": "leader", "raft-1": "follower 1"}.__getitem__)
    assert {role: len(calls) for role, calls in roles.items()} == {"leader": 2, "follower 1": 2}


#: Calls and files of one PREPARE until its answer. Who adds a call to each tick adds six to the leader's.
CALLS_MAX, FILES_MAX = {TOTAL: 850, "leader": 420}, {TOTAL: 90, "leader": 60}


@pytest.mark.timeout(120)
def test_a_prepare_passes_the_client_and_all_replicas_within_its_budget(tmp_path: Path) -> None:
    with stage(tmp_path, repeats=5) as it:
        (prepare,) = it.steps(("prepare",))
    assert set(prepare.figures) == {TOTAL, "client", "leader", "follower 1", "follower 2"}
    passed = {role: {call.function for call in calls} for role, calls in prepare.typical.roles.items()}
    assert "Transaction.prepare" in passed["client"]
    assert "Requests.submit" in passed["leader"]
    for role in ("leader", "follower 1", "follower 2"):
        assert "StateMachine.apply_ops" in passed[role], role
        assert prepare.figures[role].answer.calls <= prepare.figures[role].calm.calls
    for role, most in CALLS_MAX.items():
        answer = prepare.least[role]
        assert answer.calls <= most and answer.files <= FILES_MAX[role], (role, answer)
