"""TLS for the links between replicas: both sides show a certificate, both check it, TLS 1.3 only.

A certificate means "belongs to this cluster" because the cluster's own authority signed it. Names in it
are not compared: replicas move between hosts. The handshake inside (handshake.py) proves which replica it is;
it is bound to this very channel, so that a man in the middle cannot relay it.

Pure: bytes in, bytes out, over OpenSSL's memory buffers. So the limits of tcp.py (unauthenticated
connections, seconds, bytes) hold with TLS as without, and an unfinished TLS handshake counts as
unauthenticated.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from escrowmq.replication.carried_settings import by_name
from escrowmq.replication.errors import ConfigError, NotAuthorized, WireError

#: Maximum size of a TLS record; OpenSSL processes one at a time.
_RECORD_BYTES = 16 << 10


@by_name
@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of a replica's certificate (with its chain up to the authority), its key, and the authority."""

    cert: Path
    key: Path
    ca: Path


class TlsIdentity:
    """The content of the files, read once: a renewed certificate takes effect when the replica next starts.

    Raises ConfigError for files that cannot be read or do not belong together.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._dialing = _context(ssl.PROTOCOL_TLS_CLIENT, files)
        self._listening = _context(ssl.PROTOCOL_TLS_SERVER, files)
        self._listening.num_tickets = 0  # nothing is resumed: every connection shows its certificate

    def channel(self, *, dials: bool) -> TlsChannel:
        """One side of one connection."""
        return TlsChannel(self._dialing if dials else self._listening, dials)


class TlsChannel:
    """One connection's encryption. ``feed`` what arrives; ``shake`` until it is True; then read and seal.

    ``outgoing()`` has to be sent after each of these calls, and after an error too: it may hold the alert.
    All of them raise NotAuthorized (a certificate was refused) or WireError (not TLS, damaged).
    """

    def __init__(self, context: ssl.SSLContext, dials: bool) -> None:
        self.established = False
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=not dials)

    def feed(self, data: memoryview) -> None:
        """Bytes from the socket."""
        self._in.write(data)

    def outgoing(self) -> bytes:
        """Bytes for the socket."""
        return self._out.read()

    def shake(self) -> bool:
        """Continue TLS's own handshake; returns whether it is complete."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _typed(error) from None
        self.established = True
        return True

    def binding(self) -> bytes:
        """A value that only the two ends of this channel share: a hash of TLS's "finished" message.

        In TLS 1.3 that message covers the whole handshake, including both certificates.
        """
        finished = self._tls.get_channel_binding("tls-unique")
        assert finished is not None, "asked before the handshake was complete"
        return hashlib.sha256(b"escrowmq-channel\0" + finished).digest()

    def read_into(self, room: memoryview) -> int:
        """Decrypted bytes into ``room``; 0: nothing more for now. An orderly close by the peer is a
        WireError."""
        try:
            return int(self._tls.read(len(room), room))
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLError as error:
            raise _typed(error) from None

    def seal(self, buffers: Sequence[bytes]) -> bytes:
        """The encrypted bytes to send for these buffers, in order."""
        data = memoryview(b"".join(buffers))
        at = 0
        try:
            while at < len(data):
                at += self._tls.write(data[at : at + _RECORD_BYTES])
        except ssl.SSLError as error:
            raise _typed(error) from None
        return self._out.read()


def _context(protocol: int, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"security.tls_ca_file {files.ca} cannot be used: {_why(error)}") from None
    try:
        # For an encrypted key OpenSSL would prompt on the terminal, and a broker has none.
        context.load_cert_chain(files.cert, files.key, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"security.tls_cert_file {files.cert} with security.tls_key_file {files.key} cannot be used: "
            f"{_why(error)}; both must be PEM, belong together, and the key must not be encrypted"
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _why(error: Exception) -> str:
    return (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or "").lower()


def _typed(error: ssl.SSLError) -> NotAuthorized | WireError:
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotAuthorized(f"its certificate was refused: {error.verify_message}")
    if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason:
        return NotAuthorized(f"certificates were not accepted ({reason.lower().replace('_', ' ')})")
    return WireError(f"not the TLS 1.3 that replicas use ({reason.lower().replace('_', ' ')})")
