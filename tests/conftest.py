"""For every test: Hypothesis judges what an example does, never how long a busy machine took for it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.load_profile("here")
