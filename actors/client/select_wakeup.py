"""A Wakeup whose waiter also waits for sockets: one system call for both."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable

from escrowmq.actors.client.wakeup import Wakeup

#: Called in the waiter's thread when its socket can be read or written; must not block.
OnReady = Callable[[], None]


class SelectWakeup(Wakeup):
    """See :class:`Wakeup`. ``watch`` and ``forget``: in the waiter's thread only."""

    __slots__ = ("_asleep", "_end", "_read", "_selector")

    def __init__(self) -> None:
        super().__init__()
        self._asleep = False
        self._selector = selectors.DefaultSelector()
        self._read, self._end = socket.socketpair()
        self._read.setblocking(False)
        self._end.setblocking(False)
        self._selector.register(self._read, selectors.EVENT_READ, self._drain)

    def set(self) -> None:
        """See :class:`Wakeup`."""
        self._flag = True
        if self._asleep:  # otherwise the waiter looks at the flag before it sleeps
            self._asleep = False  # one byte wakes it, however many call this before it has run
            with contextlib.suppress(OSError):  # full: it will wake up; closed: nobody waits
                self._end.send(b"\0")

    def clear(self) -> None:
        """See :class:`Wakeup`."""
        self._flag = False

    def wait(self, timeout_s: float) -> None:
        """See :class:`Wakeup`; also returns when a watched socket was ready, after its ``OnReady`` was
        called."""
        self._asleep = True
        try:
            ready = self._selector.select(0 if self._flag else max(timeout_s, 0))
        finally:
            self._asleep = False
        for key, _ in ready:
            key.data()

    def watch(self, sock: socket.socket, on_ready: OnReady, *, writing: bool = False) -> None:
        """Call ``on_ready`` whenever ``sock`` can be read, or with ``writing`` also when it can be
        written."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        try:
            self._selector.modify(sock, events, on_ready)
        except KeyError:
            self._selector.register(sock, events, on_ready)

    def forget(self, sock: socket.socket) -> None:
        """Watch it no more; before it is closed."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def close(self) -> None:
        """Nobody will wait again."""
        self._selector.close()
        self._read.close()
        self._end.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read.fileno(), 512):
                pass
