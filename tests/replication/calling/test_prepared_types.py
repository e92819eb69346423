"""Two threads that receive their first answer of a kind at the same time: msgspec must know the kind by then.

It looks at the fields of a class at the first conversion, and lets another thread use what it has half filled
in. Which thread is first is the processor's choice, so the test asks in a new process whether anything is
left to look at once everything is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import importlib, json, pkgutil, sys
import msgspec
import escrowmq.actors, escrowmq.feedback, escrowmq.replication
from escrowmq.cluster.reading_client import READS
from escrowmq.replication.calling.carried_answers import Carried

for room in (escrowmq.actors, escrowmq.feedback, escrowmq.replication):
    for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
        importlib.import_module(module.name)

def all_of(kind):
    for below in kind.__subclasses__():
        yield below
        yield from all_of(below)

answers = list(all_of(Carried))
settings = [
    kind
    for module in list(sys.modules.values()) if getattr(module, "__name__", "").startswith("escrowmq.")
    for kind in vars(module).values()
    if isinstance(kind, type) and getattr(kind.__reduce__, "__qualname__", "").startswith("by_name.")
]
looked = []

def look(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.endswith("msgspec/_utils.py"):
        looked.append(frame.f_code.co_name)

def unknown(kinds):
    found = []
    for kind in kinds:
        looked.clear()
        sys.setprofile(look)
        msgspec.msgpack.Decoder(kind)
        sys.setprofile(None)
        if looked:
            found.append(str(kind))
    return found

class New(Carried):
    number: int | None = None

print(json.dumps({
    "new": unknown([New]), "again": unknown([New]),
    "answers": unknown(answers), "settings": unknown(set(settings)),
    "reads": unknown(read.kind for read in READS.values()),
    "counts": [len(answers), len(set(settings)), len(READS)],
}))
"""


def test_every_kind_that_threads_receive_is_known_once_it_is_imported() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout)
    assert len(found["new"]) == 1 and found["again"] == [], "the test sees what msgspec does not know yet"
    answers, settings, reads = found["counts"]
    assert answers > 40 and settings > 5 and reads > 8, found["counts"]
    assert found["answers"] == found["settings"] == found["reads"] == [], (
        "end the module with prepare(__name__)"
    )
