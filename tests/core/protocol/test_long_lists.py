"""Long lists in bodies, next to other requests."""

import gevent
import pytest

from app.core.base.clock import pause
from app.core.protocol.convert import convert_value


def test_other_requests_run_while_a_long_list_is_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(pause, "pause", lambda: pauses.append(None))
    documents = [{"name": "document"}] * 100_000

    converted = gevent.spawn(convert_value, list[dict[str, str]], documents).get()

    assert converted == documents
    assert len(pauses) >= 2
