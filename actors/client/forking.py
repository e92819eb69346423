"""Clients do not survive ``os.fork``: their threads, and Ray's, are in the parent only.

A child that used one would wait for ever, or, worse, end what its parent uses. So each client is told in the
child, and says so at its first use. Web servers that load the application before they fork are where it
happens (gunicorn's ``--preload``).
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

FORKED = (
    "it was made before os.fork(), and its threads are in the parent process. Connect and make clients in "
    "each process, after the fork (gunicorn: without --preload, or in its hook post_fork)"
)


class Forkable(Protocol):
    """Something with threads or connections of this process."""

    def forked(self) -> None:
        """In the child of a fork: everything from now on is refused, and ``close`` touches nothing that the
        parent uses. Locks may be held by threads that are not here, so they are replaced."""


_clients: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell_after_fork(client: Forkable) -> None:
    """Call its ``forked`` in every child. Keeps no client alive."""
    _clients.add(client)


def _in_child() -> None:
    for client in list(_clients):
        client.forked()


os.register_at_fork(after_in_child=_in_child)
