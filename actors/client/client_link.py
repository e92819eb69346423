"""A client's own TCP connection to one broker: requests out, answers in, in the router's thread.

It never blocks. What goes wrong with it ends it, and every call under way on it gets that error: whether the
broker has done it is unknown, so the channel sends it again, as after a lost Ray call.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from typing import Final

from escrowmq.actors.client.replica_calls import OnAnswer
from escrowmq.actors.client.select_wakeup import SelectWakeup
from escrowmq.replication.errors import WireError
from escrowmq.replication.net.client_frames import (
    GREETING_BYTES_MAX,
    NONCE_BYTES,
    ClientGreeting,
    FrameBuffer,
    decode_answer,
    frame,
)
from escrowmq.replication.net.client_listener import notice_silence

#: Of one answer: a few bytes per operation of a request.
ANSWER_BYTES_MAX: Final = 64 << 20
RECEIVE_BYTES: Final = 256 << 10
#: A broker whose machine has not acknowledged a byte for this long is gone.
DEAD_BROKER_MS: Final = 10_000


class ClientLink:
    """See the module's text. ``up``: whether calls can be sent; ``ended``: why they no longer can."""

    def __init__(self, address: tuple[str, int], key: bytes, wakeup: SelectWakeup) -> None:
        """Begins to connect. Raises OSError if that fails at once."""
        self.up = False
        self.ended: BaseException | None = None
        self._wakeup = wakeup
        self._greeting = ClientGreeting(key, os.urandom(NONCE_BYTES))
        self._frames = FrameBuffer(GREETING_BYTES_MAX)
        self._unsent: deque[memoryview] = deque()
        self._calls: dict[int, OnAnswer] = {}
        self._number = 0
        self._silent_since: float | None = None
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            notice_silence(self._socket, DEAD_BROKER_MS)
            code = self._socket.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except BaseException:
            self._socket.close()
            raise
        self._unsent.append(memoryview(frame(0, self._greeting.hello())))
        wakeup.watch(self._socket, self._ready, writing=True)

    def call(self, request: bytes, done: OnAnswer) -> None:
        """Send a request; ``done`` gets the answer, or the error that ended the link."""
        if self.ended is not None:
            done(None, self.ended)
            return
        self._number += 1
        self._calls[self._number] = done
        self._send(frame(self._number, request))

    def close(self, why: BaseException) -> None:
        """End it; every call under way gets ``why``."""
        if self.ended is not None:
            return
        self.up, self.ended = False, why
        self._wakeup.forget(self._socket)
        with contextlib.suppress(OSError):  # a forked process may hold a copy of the descriptor
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._unsent.clear()
        calls, self._calls = self._calls, {}
        for done in calls.values():
            done(None, why)

    def forked(self) -> None:
        """In a forked process: the connection is the parent's."""
        self.up, self.ended = False, ConnectionAbortedError("this process was forked")
        self._socket.close()

    def look(self, now: float) -> None:
        """Once in each turn: notes since when an answer is awaited."""
        if not self._calls:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now

    def silent_s(self, now: float) -> float:
        """For how long nothing has come although calls are under way."""
        return 0.0 if self._silent_since is None else now - self._silent_since

    # -------------------------------------------------------------- the socket

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        if not self._unsent:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                pass
            except OSError as error:
                self.close(error)
                return
        if view:
            self._unsent.append(view)
            self._wakeup.watch(self._socket, self._ready, writing=True)

    def _ready(self) -> None:
        try:
            if self._unsent:
                self._flush()
            self._receive()
        except Exception as error:  # whatever it is: the calls under way must end, and the thread go on
            self.close(error)

    def _flush(self) -> None:
        try:
            while self._unsent:
                rest = self._unsent[0]
                sent = self._socket.send(rest)
                if sent < len(rest):
                    self._unsent[0] = rest[sent:]
                    return
                self._unsent.popleft()
        except BlockingIOError:
            return
        self._wakeup.watch(self._socket, self._ready)

    def _receive(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("the broker has closed the connection")
        self._silent_since = None
        self._frames.feed(data)
        while self.ended is None and (found := self._frames.next()) is not None:
            number, payload = found
            if not self.up:
                proof = self._greeting.receive(payload)
                self._frames.payload_bytes_max, self.up = ANSWER_BYTES_MAX, True
                self._send(frame(0, proof))
                continue
            done = self._calls.pop(number, None)
            if done is None:
                raise WireError(f"an answer to call {number}, which was not made")
            done(decode_answer(payload), None)
