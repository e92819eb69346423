"""Ray is a guest: it keeps no handler of the application's signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import uvloop

from escrowmq.cluster.ray_use import as_guest


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def taken(number: int, frame: object) -> None:
    raise AssertionError("Ray's handler ran")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ours", [signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None])
def test_handlers_are_put_back(number: signal.Signals, ours: signal.Handlers) -> None:
    signal.signal(number, ours)
    with as_guest():
        signal.signal(number, taken)
    assert signal.getsignal(number) is ours
    with pytest.raises(KeyError), as_guest():
        signal.signal(number, taken)
        raise KeyError
    assert signal.getsignal(number) is ours


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_loop_s_handlers_are_put_back(new_loop: type[asyncio.AbstractEventLoop]) -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda number=number: (seen.append(number), stopped.set()))
        with as_guest():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, taken)
        for number in (signal.SIGTERM, signal.SIGINT):
            stopped.clear()
            os.kill(os.getpid(), number)
            await asyncio.wait_for(stopped.wait(), 5)
        return seen

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == [signal.SIGTERM, signal.SIGINT]


def test_in_another_thread_nothing_is_set() -> None:
    problems: list[BaseException] = []

    def work() -> None:
        try:
            with as_guest():
                pass
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert problems == []


def test_a_command_ends_in_order() -> None:
    program = (
        "import os, signal, typer\n"
        "from escrowmq.cluster import cli\n"
        "from escrowmq.cluster.cli.app import app\n"
        "@app.command('waits')\n"
        "def waits() -> None:\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        signal.pause()\n"
        "    finally:\n"
        "        print('closed')\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "waits"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, "closed\n"), done.stderr
