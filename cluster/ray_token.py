"""Ray's token as this process has it, found as Ray finds it, but without Ray's import.

It proves over a Unix socket that a command could join a Ray cluster that requires the token. The token itself
is never sent, and never shown.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

_PURPOSE = b"escrowmq reading "


def proof(namespace: str) -> bytes:
    """What shows that this process has Ray's token; b"" if it has none, or does not use it."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return b""
    token = _token()
    return hmac.digest(token, _PURPOSE + namespace.encode(), hashlib.sha256) if token else b""


def _token() -> bytes:
    given = os.environ.get("RAY_AUTH_TOKEN", "").strip()
    if given:
        return given.encode()
    named = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    try:
        return (Path(named) if named else Path.home() / ".ray" / "auth_token").read_bytes().strip()
    except (OSError, RuntimeError):  # no such file, not readable, or no home
        return b""
