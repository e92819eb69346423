"""Replicated settings, changed and shown by an operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.actors.admin.admin import Admin
from escrowmq.replication.errors import InvalidMessage, OutcomeUnknown, Unavailable
from escrowmq.replication.format.settings import Settings
from tests.support.brokers import Brokers, ClientCalls


def test_settings_are_changed_in_every_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(tmp_path, groups=2, replicas=1)
    admin = Admin(brokers.info, timeout_s=10.0, calls=ClientCalls(brokers))
    try:
        states = [group.leader().parts.running.replica.state for group in brokers.groups]
        assert admin.change_settings(groups_kept=9, settled_generation=70)["groups_kept"] == 9
        assert admin.change_settings() == {**Settings().values(), "groups_kept": 9, "settled_generation": 70}
        assert {state.settings.groups_kept for state in states} == {9}
        with pytest.raises(InvalidMessage, match="'groups_kept' must be 1 to"):
            admin.change_settings(groups_kept=0)
        with pytest.raises(InvalidMessage, match="unknown setting 'groups'"):
            admin.change_settings(groups=1)

        def no_answer(gid: int, request: bytes) -> None:
            raise OutcomeUnknown(f"group {gid}")

        monkeypatch.setattr(admin, "_submit", no_answer)
        with pytest.raises(OutcomeUnknown):
            admin.change_settings(groups_kept=8)
        with pytest.raises(Unavailable, match="group 0 does not answer"):
            admin.change_settings()  # it only reads, so it cannot have had an effect
    finally:
        admin.close()
        brokers.close()
