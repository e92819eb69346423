"""Mixins that make any object with ``close()`` a context manager."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


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
