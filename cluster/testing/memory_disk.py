"""A disk in memory: the log's files exist until the process ends or the disk object is freed."""

from __future__ import annotations

from collections.abc import Sequence

from escrowmq.replication.log.disk import Disk, File

#: More than any test fills.
FREE_BYTES = 1 << 40


class MemoryFile:
    """See :class:`escrowmq.replication.log.disk.File`. ``sync`` has nothing to do."""

    def __init__(self) -> None:
        self.data = bytearray()

    def append(self, buffers: Sequence[bytes]) -> None:
        for buffer in buffers:
            self.data += buffer

    def write_at(self, pos: int, data: bytes) -> None:
        assert pos + len(data) <= len(self.data), "write_at never grows a file"
        self.data[pos : pos + len(data)] = data

    def read(self, pos: int, size: int) -> bytes:
        return bytes(self.data[pos : pos + size])

    def forget(self, pos: int, size: int) -> None: ...

    def size(self) -> int:
        return len(self.data)

    def truncate(self, size: int) -> None:
        del self.data[size:]

    def sync(self) -> None: ...

    def close(self) -> None: ...


class MemoryDisk(Disk):
    """See :class:`escrowmq.replication.log.disk.Disk`."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}

    def open(self, name: str, create: bool = False) -> File:
        file = self._files.get(name)
        if file is None:
            if not create:
                raise FileNotFoundError(name)
            file = self._files[name] = MemoryFile()
        return file

    def names(self) -> list[str]:
        return sorted(self._files)

    def exists(self, name: str) -> bool:
        return name in self._files

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        if old not in self._files:
            raise FileNotFoundError(old)
        self._files[new] = self._files.pop(old)

    def sync_dir(self) -> None: ...

    def free_bytes(self) -> int:
        return FREE_BYTES
