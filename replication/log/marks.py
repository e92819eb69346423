"""Small files beside the log that tell the next start of a replica what this one knew.

``wants-copy``: the leader's log must be copied first, and why. ``learner``: this replica has lost its
log and may have promised what it no longer knows; its text ``newcomer``: or it never was a member, which the
copied log will tell. ``superseded``: another process has taken its place, and which incarnation; it must
never take part again. ``raft-port``: where it listened. ``scrubbed``: how far its files have been scrubbed.
``members``: the group's members, once they have changed, for tools that look for all of its directories. The
text of a damaged file cannot be trusted, so the first three take effect by existing.
"""

from __future__ import annotations

from escrowmq.replication.log.disk import Disk

WANTS_COPY, LEARNER, SUPERSEDED, PORT_FILE = "wants-copy", "learner", "superseded", "raft-port"
SCRUBBED, MEMBERS = "scrubbed", "members"
BEHIND, DAMAGED = "behind", "damaged"  # why a copy is wanted
LOST, NEWCOMER = "1", "newcomer"  # texts of the learner mark


class Marks:
    """The marks in one data directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def read(self, name: str) -> str | None:
        """The mark's text; None if it is not set. Raises DiskFailed."""
        return read_text(self._disk.read_all(name)) if self._disk.exists(name) else None

    def write(self, name: str, text: str) -> None:
        """Set it, durable at return. Raises DiskFull, DiskFailed."""
        self._disk.write_atomic(name, [text.encode()])

    def remove(self, name: str) -> None:
        """Remove it, durably at return. If a power cut brought back the mark of a learner that counts again,
        its group could lose a majority with the next disk."""
        if self._disk.exists(name):
            self._disk.remove(name)
            self._disk.sync_dir()

    def superseded_by(self) -> int | None:
        """The incarnation that took this replica's place; -1: one that is no longer known; None: it was not
        replaced."""
        text = self.read(SUPERSEDED)
        if text is None:
            return None
        return int(text) if text.isdecimal() and len(text) < 20 else -1

    def port(self) -> int:
        """The port used last time; 0 (any) if it is not known."""
        return read_port(self._disk.read_all(PORT_FILE)) if self._disk.exists(PORT_FILE) else 0


def read_text(content: bytes) -> str:
    """A mark's text, however damaged."""
    return content.decode("ascii", errors="replace").strip()


def read_port(content: bytes) -> int:
    """The port that a file names; 0 (any) if it names none, since nothing depends on it."""
    text = read_text(content)
    return int(text) if text.isdecimal() and len(text) <= 5 and int(text) < 1 << 16 else 0
