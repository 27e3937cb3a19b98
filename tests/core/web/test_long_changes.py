"""Long bodies of control routes, and long bodies of answers."""

from typing import Any

import pytest

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
    """A connection that records what is sent to the client at once."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self._queued = b"head"

    def send(self, data: bytes) -> None:
        self.sent.append(self._queued + data)
        self._queued = b""


@pytest.mark.parametrize(
    ("size", "first_size"), [(MAX_COPIED_BYTES, 4 + MAX_COPIED_BYTES), (MAX_COPIED_BYTES + 1, 4)]
)
def test_only_short_bodies_are_copied_behind_the_head(size: int, first_size: int) -> None:
    response: Any = GeneralResponse.__new__(GeneralResponse)
    connection = Connection()
    response.chunked = False
    response._connection = connection

    response._emit_body(b"x" * size)

    assert b"".join(connection.sent) == b"head" + b"x" * size
    assert len(connection.sent[0]) == first_size
