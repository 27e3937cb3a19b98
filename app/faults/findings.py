"""What was found wrong with a client's conduct, kind by kind."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct


class Finding(Struct):
    """One kind of misconduct; `first` and `last` are Unix seconds, the rest tells of the last time."""

    kind: str
    first_s: float
    last_s: float
    request_id: str
    sentence: str
    count: int = 1

    def told(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "count": self.count,
            "first": moment(self.first_s),
            "last": moment(self.last_s),
            "example_request_id": self.request_id,
            "what": self.sentence,
        }


class Findings:
    """At most one finding of each kind. `now` gives Unix seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._found: dict[str, Finding] = {}

    def add(self, kind: str, request_id: str, sentence: str) -> None:
        now_s = self._now()
        found = self._found.get(kind)
        if found is None:
            self._found[kind] = Finding(kind, now_s, now_s, request_id, sentence)
            return
        found.count += 1
        found.last_s, found.request_id, found.sentence = now_s, request_id, sentence

    def __len__(self) -> int:
        return len(self._found)

    def told(self) -> list[dict[str, Any]]:
        return [finding.told() for finding in self._found.values()]


def moment(unix_s: float) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
