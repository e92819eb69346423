"""Mixins that make any object with ``close()`` a context manager."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from typing import Protocol, Self


class Closing(ABC):
    """For ``with`` blocks."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """Called at the end of the block, whether or not an exception leaves it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing(ABC):
    """For ``async with`` blocks."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> None:
        """As in :class:`Closing`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# ------------------------------------------------------------------------------------------------------------
# Clients do not survive ``os.fork``: their threads, and Ray's, exist only in the parent.
#
# A child that used one would wait forever or, worse, close what its parent still uses. So every client is
# marked in the child, and its first use there raises an error that says so. This happens in web servers that
# load the application before they fork (gunicorn's ``--preload``).

CONNECT_LATER = (
    "Connect and create clients in each process, after the fork (gunicorn: without --preload, or in its "
    "post_worker_init hook), and not before it"
)
FORKED = f"it was created before os.fork(), and its threads are in the parent process. {CONNECT_LATER}"


class Forkable(Protocol):
    """Something with threads or connections of this process."""

    def forked(self) -> None:
        """In the child of a fork: refuse every call from now on; ``close`` must touch nothing that the
        parent uses. Locks may be held by threads that do not exist here, so they are replaced."""


_clients: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell_after_fork(client: Forkable) -> None:
    """Call the client's ``forked`` in every forked child. Does not keep the client alive."""
    _clients.add(client)


def _in_child() -> None:
    for client in list(_clients):
        client.forked()


os.register_at_fork(after_in_child=_in_child)
