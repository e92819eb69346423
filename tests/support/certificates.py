"""Certificates for tests: an authority, and what it issues, as files that a replica is pointed to."""

from __future__ import annotations

import datetime
from pathlib import Path

import trustme

from escrowmq.replication.net.tls import TlsFiles


class Authority:
    """A certificate authority of its own below ``path``."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._path, self._ca = path, trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.ca_file = path / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.ca_file))

    def issue(self, name: str, *, trusts: Authority | None = None, expired: bool = False) -> TlsFiles:
        """A certificate and its key; ``trusts`` is whose certificates the holder lets in (this one's)."""
        until = datetime.datetime(2020, 1, 1) if expired else None
        since = datetime.datetime(2019, 1, 1) if expired else None
        issued = self._ca.issue_cert(f"{name}.test", not_before=since, not_after=until)
        cert, key = self._path / f"{name}.crt", self._path / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        return TlsFiles(cert, key, (trusts or self).ca_file)
