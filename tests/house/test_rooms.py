"""The rooms: each describes itself, is on the map, and keeps its contracts; and every contract can fail."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
#: A file of so few lines with one importer in its own folder is a part of that one.
SMALL_LINES = 60
FOLDERS = ("spark_integration", "cluster", "actors", "feedback", "replication")
ROOMS = sorted(
    str(init.parent.relative_to(ROOT)) for folder in FOLDERS for init in (ROOT / folder).glob("*/__init__.py")
)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
#: Calls that start a thread or a process.
STARTERS = {
    "Thread",
    "Timer",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "start_new_thread",
    "Process",
    "Popen",
}


@pytest.mark.parametrize("room", [*FOLDERS, *ROOMS])
def test_a_room_says_what_lives_there_and_what_to_read_first(room: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
    assert len(re.findall(r"[.:](?:\s|$)", text)) >= 2, (
        f"{room}/__init__.py: say in a few sentences what lives here"
    )
    if room.startswith("cluster/"):
        return  # commands and the demo: nothing imports them
    first = re.search(r"Read\s+``([\w./]+)``", text)
    assert first, f"{room}/__init__.py: name the file to begin with, as in: Read ``core`` first."
    name = first[1].removesuffix(".py").replace(".", "/")
    assert (ROOT / room / f"{name}.py").exists(), f"{room}/__init__.py: there is no {name}.py"


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_on_the_map_and_in_the_picture(room: str) -> None:
    name = room.partition("/")[2]
    assert f"`{name}/`" in (ROOT / "CONTRIBUTING.md").read_text(), f"CONTRIBUTING's map does not show {room}"
    picture = (ROOT / "docs" / "images" / "rooms.svg").read_text()
    assert re.search(rf">[^<]*\b{name}\b[^<]*<", picture), f"docs/images/rooms.svg does not show {room}"


def test_a_small_file_with_one_importer_beside_it_says_why_it_stands_apart() -> None:
    graph = grimp.build_graph("escrowmq")
    wrong, told = list[str](), list[str]()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join(("escrowmq", *path.relative_to(ROOT).with_suffix("").parts))
            source = path.read_text()
            importers = graph.find_modules_that_directly_import(module) if module in graph.modules else ()
            if path.stem == "__init__" or source.count("\n") > SMALL_LINES or len(importers) != 1:
                continue
            (importer,) = importers
            beside = importer.rpartition(".")[0] == module.rpartition(".")[0]
            if beside and source.startswith('"""Apart from ``'):
                told.append(path.name)
            elif beside:
                wrong.append(f"{path.relative_to(ROOT)} serves only {importer}: fold it, or say why not")
    assert wrong == []
    assert "supervisor_calls.py" in told, "or nothing was looked at"


def test_only_the_host_of_a_replica_starts_threads() -> None:
    wrong = []
    for path in sorted((ROOT / "replication").rglob("*.py")):
        if path.parent.name == "host":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = (
                    node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                )
                if called in STARTERS:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} calls {called}")
    assert not wrong, "\n".join(wrong)


#: Contract -> the file to change, and the line added to it that breaks the contract.
PLANTED = {
    "The five folders only import downwards": ("feedback/policy.py", "import escrowmq.actors.client.router"),
    "The rooms of replication only import downwards": (
        "replication/log/disk.py",
        "import escrowmq.replication.raft.node",
    ),
    "The rooms of actors only import downwards": (
        "actors/client/router.py",
        "import escrowmq.actors.producer.core",
    ),
    "The rooms of feedback only import downwards": (
        "feedback/asking/live_producers.py",
        "import escrowmq.feedback.edges.shard_actor",
    ),
    "The rooms of spark_integration only import downwards": (
        "spark_integration/decode/values.py",
        "import escrowmq.spark_integration.sink.task",
    ),
    "No file imports itself through others": (
        "replication/state/topics.py",
        "import escrowmq.replication.state.machine",
    ),
    "Replication knows no Ray, not even through others": ("replication/host/requests.py", "import ray"),
    "Ray only where actors are made and called": ("actors/producer/core.py", "import ray"),
    "Replication is pure but for host and net: no clock, thread, socket, event loop, process": (
        "replication/replica/compaction.py",
        "import time",
    ),
    "Only raft knows pysyncobj, and the log, which poses as its journal": (
        "replication/host/requests.py",
        "import pysyncobj",
    ),
    "Nothing off the wire or the disk is unpickled": ("replication/format/wire.py", "import pickle"),
    "Feedback is pure but for its edges and the pool that runs the application's querier": (
        "feedback/asking/checks.py",
        "import time",
    ),
    "Decoding is told bytes and types: no Spark, no clock, no thread": (
        "spark_integration/decode/records.py",
        "import time",
    ),
}


def test_every_import_contract_can_fail(tmp_path: Path) -> None:
    assert sorted(PLANTED) == sorted(contract["name"] for contract in CONTRACTS)
    for name in ("escrowmq", *FOLDERS, "pyproject.toml"):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    for file, line in PLANTED.values():
        assert (tmp_path / file).exists(), f"{file} has gone: plant the line in another file of its room"
        with (tmp_path / file).open("a") as source:
            source.write(f"\n\n{line}\n")
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
    ]
    run = subprocess.run(
        [*command, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    said = re.sub(r"\s+", " ", run.stdout)
    for contract in PLANTED:
        assert f"{contract} BROKEN" in said, (
            f"{contract!r} does not notice its planted line\n{run.stdout[-4000:]}{run.stderr}"
        )
