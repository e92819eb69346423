"""A shell that completes a line meets every command, though a command loads itself alone."""

from __future__ import annotations

import pytest

from escrowmq.cluster import cli


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("escrowmq t", {"topic", "txn"}),
        ("escrowmq topic de", {"describe", "delete"}),
        ("escrowmq status --wa", {"--watch"}),
    ],
)
def test_completion(
    words: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ESCROWMQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setattr("sys.argv", ["escrowmq"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit):
        cli.main()
    assert set(capsys.readouterr().out.split()) == offered
