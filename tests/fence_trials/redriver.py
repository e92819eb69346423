"""An operator who redrives all dead letters of a group to one place: ``python -m tests.fence_trials.redriver
JSON``.

It waits for a line of its standard input, so that two of them begin at the same moment, and repeats what was
refused or not answered until nothing is left. What each call has reported goes into a file.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import escrowmq
from escrowmq import Admin

PAUSE_S, LISTED = 0.1, 100_000
READY = "ready"


@dataclass(frozen=True, slots=True)
class Redriver:
    """The settings of an operator. ``to``: a topic; "": the group itself. ``many``: dead letters of a call;
    0: all in one, unnamed. ``shuffled``: not in their order. ``dies_in``: it is killed so many seconds
    (``dies_after_s``) after this call has begun, from 0; -1: it lives. ``report``: the file."""

    address: str
    namespace: str
    group: str
    to: str
    many: int
    shuffled: bool
    dies_in: int
    dies_after_s: float
    name: str
    report: str

    def encode(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Reported:
    """An answered call: of the dead letters that it was about, ``redriven`` went ``to`` there."""

    ids: list[str]
    to: str
    redriven: int


def reports(file: Path) -> tuple[list[Reported], bool]:
    """All answered calls, and whether every call was answered."""
    told = [json.loads(line) for line in file.read_text().splitlines() if line != READY]
    answered = [Reported(**one["answer"]) for one in told if "answer" in one]
    return answered, len(answered) * 2 == len(told)


def main() -> None:
    told = Redriver(**json.loads(sys.argv[1]))
    file = os.open(told.report, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    with escrowmq.connect(told.address, told.namespace) as cluster:
        os.write(file, f"{READY}\n".encode())
        sys.stdin.readline()
        calls = 0
        while ids := [letter.id for letter in cluster.admin.dead_letters(told.group, limit=LISTED)]:
            for named in _portions(told, ids):
                if calls == told.dies_in:
                    threading.Timer(told.dies_after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
                calls += 1
                _redrive(cluster.admin, told, named, ids, file)


def _portions(told: Redriver, ids: list[str]) -> Iterator[list[str] | None]:
    if not told.many:
        yield None
        return
    if told.shuffled:
        random.Random(told.name).shuffle(ids)
    for at in range(0, len(ids), told.many):
        yield ids[at : at + told.many]


def _redrive(admin: Admin, told: Redriver, named: list[str] | None, every: list[str], file: int) -> None:
    os.write(file, f"{json.dumps({'begun': True})}\n".encode())
    try:
        done = admin.redrive(told.group, named, to=told.to or None, by=told.name)
    except escrowmq.EscrowMQError:  # others hold them, there is no leader, or its answer is lost
        time.sleep(PAUSE_S)
        return
    answer = Reported(every if named is None else named, told.to, done.redriven)
    os.write(file, f"{json.dumps({'answer': asdict(answer)})}\n".encode())


if __name__ == "__main__":
    main()
