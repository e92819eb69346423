"""Small parts that ``pysync`` puts into pysyncobj's core through its public seams."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from pysyncobj.node import Node
from pysyncobj.transport import Transport

from escrowmq.replication.raft.types import Message


class PeerNode(Node):  # type: ignore[misc]
    """A member by its plain id. Its hash ignores PYTHONHASHSEED: sets iterate the same in every run."""

    def __init__(self, id: str, **info: Any) -> None:
        super().__init__(id, **info)
        self._hash = zlib.crc32(id.encode())

    def __hash__(self) -> int:
        return self._hash

    @property
    def address(self) -> str:
        return str(self._id)


class CoreLink(Transport):  # type: ignore[misc]
    """pysyncobj's transport: what it sends goes to ``send``; ``receive`` brings what arrives."""

    def __init__(self, send: Callable[[str, Message], bool]) -> None:
        super().__init__(None, None, None)
        self._send_to = send

    def send(self, node: Node, message: Message) -> bool:
        return self._send_to(node.id, message)

    def receive(self, node: Node, message: Message) -> None:
        self._onMessageReceived(node, message)

    def connected(self, node: Node) -> None:
        self._onNodeConnected(node)

    def disconnected(self, node: Node) -> None:
        self._onNodeDisconnected(node)


class NoPoll:
    """Stock ticks poll sockets; ours are the driver's."""

    def poll(self, timeout: float) -> None: ...
    def subscribe(self, *_: Any) -> None: ...
    def unsubscribe(self, *_: Any) -> None: ...


class CappedMatch(dict[Node, int]):
    """matchIndex as the commit step sees it: never above ``cap``, the highest index a quorum holds durably.

    Stock counts the leader itself for every entry it has in memory. The cap is only set while the
    commit step runs; otherwise the true values show.
    """

    __slots__ = ("cap",)

    def __init__(self) -> None:
        super().__init__()
        self.cap: int | None = None

    def __getitem__(self, node: Node) -> int:
        match, cap = dict.__getitem__(self, node), self.cap
        return match if cap is None or match < cap else cap
