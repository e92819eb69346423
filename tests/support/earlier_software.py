"""The last software that knew no format level above 5, for tests in which it runs beside today's.

``tests/golden/software/level-5.tar.xz`` is the package at commit 10983fa, without its demo, its ``testing``
module and its part for Spark. It is in an archive, so that a checkout without history has it, and so that
nothing in it is taken for code of today. When there is a further level, add the software before it::

    python -P tests/support/earlier_software.py COMMIT tests/golden/software/level-N.tar.xz
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).parent.parent / "golden" / "software" / "level-5.tar.xz"
#: Its highest format level.
LEVEL = 5
_FOLDERS = ("escrowmq", "actors", "cluster", "feedback", "replication")
_LEFT_OUT = ("cluster/demo", "cluster/testing", "escrowmq/spark_integration")


def extract(archive: tarfile.TarFile, directory: Path) -> None:
    """With the filter that Python warns without from 3.12 on; 3.11 has it since 3.11.4."""
    filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(directory, **filtered)  # type: ignore[arg-type]


def unpacked(directory: Path) -> Path:
    """Unpack it into ``directory``, which goes into PYTHONPATH, and return that."""
    directory.mkdir()
    with tarfile.open(ARCHIVE) as archive:
        extract(archive, directory)
    return directory


def main() -> None:
    """Write an archive of the package at a commit."""
    commit, file = sys.argv[1:]
    packed = subprocess.run(["git", "archive", commit, *_FOLDERS], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as source, tarfile.open(file, "w:xz", preset=9) as made:
        for member in source:
            if not member.name.startswith(_LEFT_OUT):
                made.addfile(member, source.extractfile(member) if member.isfile() else None)


if __name__ == "__main__":
    main()
