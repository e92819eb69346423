"""pysyncobj's private names, as ``replication/raft/pysync.py`` uses them, are those of the pinned version.

When this fails, pysyncobj has changed: read its new source against docs/decisions.md before moving the pin.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from pathlib import Path

import pysyncobj
import pysyncobj.syncobj
from pysyncobj.version import VERSION

import escrowmq
from escrowmq.replication.raft import pysync

#: sha256 of pysyncobj 0.3.17's syncobj.py: the guards were derived from exactly this text.
SYNCOBJ_SHA256 = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"


def test_the_pinned_version_is_installed() -> None:
    assert VERSION == pysync.SUPPORTED_VERSION == "0.3.17"
    source = inspect.getsource(pysyncobj.syncobj).encode()
    assert hashlib.sha256(source).hexdigest() == SYNCOBJ_SHA256


def test_every_private_name_exists() -> None:
    transport = pysyncobj.transport.Transport(None, None, None)
    node = pysyncobj.SyncObj(None, [], pysyncobj.SyncObjConf(autoTick=False), transport=transport)
    for name in pysync.PRIVATE_METHODS:
        assert f"_SyncObj__{name}" in vars(pysyncobj.SyncObj), name
    for name in pysync.PRIVATE_ATTRIBUTES:
        assert f"_SyncObj__{name}" in vars(node), name


def test_no_private_name_is_used_without_being_listed() -> None:
    source = inspect.getsource(pysync)
    listed = {*pysync.PRIVATE_METHODS, *pysync.PRIVATE_ATTRIBUTES}
    assert set(re.findall(r"_SyncObj__(\w+)", source)) == listed


def test_private_access_stays_in_one_file() -> None:
    product = Path(escrowmq.__file__).parent
    files = [file for folder in product.iterdir() if folder.is_dir() for file in folder.rglob("*.py")]
    assert product / "actors" / "broker" / "broker.py" in files, "not this room alone: all of the product"
    users = {file.name for file in files if "_SyncObj__" in file.read_text()}
    assert users == {"pysync.py"}


def test_stock_users_of_pysyncobj_see_no_change() -> None:
    """The two wrapped globals behave as before outside a Core."""
    assert isinstance(pysyncobj.syncobj.createJournal(None), pysyncobj.journal.MemoryJournal)
    before = pysync._ThreadClock.read()
    assert 0 <= pysyncobj.syncobj.monotonicTime() - before < 60
