"""The cluster secret, by which replicas authenticate each other on their Raft links.

It comes from an environment variable or a file, or it is generated at the first start and kept in a file that
only its owner can read. Brokers receive it as an argument inside Ray, which is protected by its own token. It
must never appear in a log, an error text or a command line, so it is wrapped in a class that does not show
it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from escrowmq.cluster.settings import SECRET_BYTES_MIN, SecuritySettings
from escrowmq.replication.errors import ConfigError

SECRET_FILE = "secret"


class Secret:
    """Bytes that appear in no ``repr`` or ``str``; only ``reveal`` returns them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The bytes."""
        return self._value

    def fingerprint(self, cluster_id: str) -> str:
        """A keyed hash by which the secret is recognised later; the secret cannot be derived from it."""
        return hmac.new(self._value, f"escrowmq:{cluster_id}".encode(), hashlib.sha256).hexdigest()

    def __repr__(self) -> str:
        return "Secret(...)"


def given_secret(settings: SecuritySettings) -> Secret | None:
    """The secret from the configuration, if there is one. Raises ConfigError for an unsuitable file."""
    if settings.secret is not None:
        return Secret(settings.secret.get_secret_value().encode())
    if settings.secret_file is not None:
        return read_secret(settings.secret_file)
    return None


def kept_secret(data_dir: Path) -> Secret:
    """The secret in ``data_dir``; generated there if there is none yet."""
    path = data_dir / SECRET_FILE
    if not path.exists():
        fresh = f"{path}.{os.getpid()}.tmp"
        number = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(number, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(number)
        os.rename(fresh, path)
    return read_secret(path)


def read_secret(path: Path) -> Secret:
    """The content of a secret file, without leading and trailing white space. Raises ConfigError."""
    try:
        mode = path.stat().st_mode
        value = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the secret file {path}: {error.strerror}") from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ConfigError(f"every user can read or write the secret file {path}; run chmod 600 on it")
    if len(value) < SECRET_BYTES_MIN:
        raise ConfigError(f"the secret file {path} must hold at least {SECRET_BYTES_MIN} bytes")
    return Secret(value)
