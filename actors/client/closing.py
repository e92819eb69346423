"""What has a ``close`` can stand in a ``with`` block, whose end closes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """For ``with``."""

    __slots__ = ()

    @abstractmethod
    def close(self) -> None:
        """The end of the block calls it, whether or not an exception leaves the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing(ABC):
    """For ``async with``."""

    __slots__ = ()

    @abstractmethod
    async def close(self) -> None:
        """As in :class:`Closing`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
