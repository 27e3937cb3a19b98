"""Long bodies of control routes, and long bodies of answers."""

from typing import Any

import pytest

from app.core.server.gunicorn import general
from app.core.server.gunicorn.general import MAX_COPIED_BYTES, GeneralResponse
from config.settings import Settings
from tests.application import app_of


def test_unknown_settings_of_a_change_are_not_looked_up_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = app_of()
    tables: list[None] = []
    table: Any = Settings.__dict__["table"]

    def record(settings: Settings) -> object:
        tables.append(None)
        return table.fget(settings)

    monkeypatch.setattr(Settings, "table", property(record))
    change = {f"unknown-{number}": 1 for number in range(5000)}

    answer = app.test_client().post("/admin/config", json=change)

    assert answer.status_code == 400
    assert "unknown setting 'unknown-0'" in answer.text
    assert len(tables) < 100


class Connection:
    """A connection that records its steps."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    def send(self, data: bytes) -> None:
        self._steps.append(f"send {len(data)}")


@pytest.mark.parametrize(
    ("size", "steps_before"), [(MAX_COPIED_BYTES, []), (MAX_COPIED_BYTES + 1, ["pause"])]
)
def test_other_requests_run_before_a_long_body_is_sent(
    size: int, steps_before: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile, the head is sent: the body would be copied behind it."""
    steps: list[str] = []
    monkeypatch.setattr(general, "pause", lambda: steps.append("pause"))
    response: Any = GeneralResponse.__new__(GeneralResponse)
    response.chunked = False
    response._connection = Connection(steps)

    response._emit_body(b"x" * size)

    assert steps == [*steps_before, f"send {size}"]
