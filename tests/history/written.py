"""A short notation for histories in tests: every call is one event, one nanosecond after the last."""

from __future__ import annotations

from typing import Any

from tests.history.checker import check
from tests.history.events import Recorder, Sent
from tests.history.report import Report

TOPIC = "t"


class Written:
    """A history written by hand. Messages are ``id``, ``id@partition`` or ``id@partition@key`` (partition -1:
    by the key), and ``id@partition#group``; all are in one topic."""

    def __init__(self) -> None:
        self._now = 0
        self.recorder = Recorder("hand", clock=self._tick)
        self._partition_of: dict[str, int] = {}

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def sent(self, *messages: str) -> list[Sent]:
        made = []
        for text in messages:
            text, _, group = text.partition("#")
            id, number, key, *_ = (*text.split("@"), "", "")
            self._partition_of[id] = int(number or 0)
            made.append(Sent(id, TOPIC, int(number or 0), key or None, int(group or -1)))
        return made

    def prepare(self, tx: str, *messages: str, end: str = "ok") -> Written:
        return self._end(self.recorder.invoke("prepare", app="a", tx=tx, messages=self.sent(*messages)), end)

    def decide(
        self, tx: str, outcome: str, told: str | None = None, by: str = "producer", end: str = "ok"
    ) -> Written:
        op = self.recorder.invoke("decide", app="a", tx=tx, outcome=outcome, by=by)
        return self._end(op, end, outcome=told or outcome)

    def commit(self, tx: str, told: str | None = None, by: str = "producer", end: str = "ok") -> Written:
        return self.decide(tx, "COMMITTED", told, by, end)

    def rollback(self, tx: str, told: str | None = None, by: str = "producer", end: str = "ok") -> Written:
        return self.decide(tx, "ROLLBACK", told, by, end)

    def local(self, tx: str, outcome: str) -> Written:
        return self._end(self.recorder.invoke("local", app="a", tx=tx, outcome=outcome), "ok")

    def stored(self, tx: str, stored: bool) -> Written:
        """Whether the application's fenced database has it at the end."""
        return self._end(self.recorder.invoke("stored", app="a", tx=tx), "ok", stored=stored)

    def outcome(self, tx: str, outcome: str, branch: int | None = None) -> Written:
        """The answer of the home group, or with ``branch`` of that group."""
        where = {} if branch is None else {"branch": branch}
        return self._end(self.recorder.invoke("outcome", app="a", tx=tx, **where), "ok", outcome=outcome)

    def checked(self, tx: str) -> Written:
        """A check asked a producer about it."""
        return self._end(self.recorder.invoke("check", app="a", tx=tx), "ok")

    def send(self, *messages: str, at: list[int] | None = None, by: str = "p", end: str = "ok") -> Written:
        op = self.recorder.invoke("send", producer=by, messages=self.sent(*messages))
        numbers = [self._partition_of[m.partition("@")[0]] for m in messages]
        places = [[TOPIC, number, offset] for number, offset in zip(numbers, at, strict=True)] if at else None
        return self._end(op, end, **({"places": places} if places else {}))

    def created(self, id: int) -> Written:
        """The topic is created, and has this id."""
        return self._end(self.recorder.invoke("topic-create", topic=TOPIC), "ok", id=id)

    def deleted(self) -> Written:
        return self._end(self.recorder.invoke("topic-delete", topic=TOPIC), "ok")

    def poll(self, *records: tuple[int, str], by: str = "r", p: int = 0, **fields: Any) -> Written:
        self.recorder.read(by, TOPIC, p, records, **fields)
        return self

    def holds(
        self, *ids: str, p: int = 0, start: int = 0, cut: str | None = None, life: int | None = None
    ) -> Written:
        """A complete read: these ids, from offset ``start``. ``life``: the topic's id."""
        records = list(enumerate(ids, start=start))
        self.recorder.read("final", TOPIC, p, records, start=start, end=start + len(ids), cut=cut, life=life)
        return self

    def offset(self, value: int, end: str = "ok") -> Written:
        op = self.recorder.invoke("offset-commit", group="g", topic=TOPIC, partition=0, offset=value)
        return self._end(op, end)

    def offset_is(self, value: int) -> Written:
        op = self.recorder.invoke("offset-fetch", group="g", topic=TOPIC, partition=0)
        return self._end(op, "ok", offset=value)

    def check(self, expect_resolved: bool = True) -> Report:
        return check(self.recorder.events, expect_resolved=expect_resolved)

    def _end(self, op: int, end: str, **fields: Any) -> Written:
        if end == "ok":
            self.recorder.ok(op, **fields)
        elif end == "fail":
            self.recorder.fail(op, "refused")
        elif end in ("unknown", "earlier"):
            self.recorder.unknown(op, "timed out", earlier=end == "earlier")
        else:
            assert end == "crash", end  # no end at all
        return self
