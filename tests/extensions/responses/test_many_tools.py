"""Requests with thousands of tools, next to other work."""

import gevent
import pytest

from app.core.base.clock import pause
from app.extensions.responses.tools import convert_tools


def test_conversion_of_many_tools_lets_other_work_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(pause, "pause", lambda: pauses.append(None))
    tools = [{"type": "function", "name": f"f{number}"} for number in range(1000)]
    converted = gevent.spawn(convert_tools, tools).get()
    assert [tool["name"] for tool in converted] == [tool["name"] for tool in tools]
    assert len(pauses) >= 5
