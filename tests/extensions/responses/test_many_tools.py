"""Requests with thousands of tools and calls, next to other work."""

import time
from functools import partial
from itertools import count

import gevent
import pytest

from app.core.base.clock import pause
from app.extensions.responses.chat import chat_request
from app.extensions.responses.protocol import ResponsesRequest
from app.extensions.responses.protocol_items import InputItem, convert_input
from app.extensions.responses.tools import callable_functions, convert_tools


def test_other_greenlets_run_while_a_thousand_tools_are_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(pause, "pause", partial(pauses.append, None))
    tools = [{"type": "function", "name": f"f{number}"} for number in range(1000)]
    converted = gevent.spawn(convert_tools, tools).get()
    assert [tool["name"] for tool in converted] == [tool["name"] for tool in tools]
    assert len(pauses) >= 5


def test_other_greenlets_run_while_a_large_tool_namespace_is_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(pause, "pause", partial(pauses.append, None))
    members = [{"type": "function", "name": f"f{number}"} for number in range(1000)]
    namespace = {"type": "namespace", "name": "n", "description": "d", "tools": members}

    converted = gevent.spawn(convert_tools, [namespace]).get()

    assert [tool["name"] for tool in converted[0]["tools"]] == [tool["name"] for tool in members]
    assert len(pauses) >= 5


def test_other_greenlets_run_while_the_functions_of_many_tools_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    now_s = count()
    monkeypatch.setattr(pause, "pause", partial(pauses.append, None))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now_s)))
    tools = convert_tools([{"type": "function", "name": f"f{number}"} for number in range(1000)])
    pauses.clear()

    functions = gevent.spawn(lambda: [*callable_functions(tools)]).get()

    assert len(functions) == len(tools)
    assert len(pauses) >= len(tools)


def test_other_greenlets_run_while_many_input_items_are_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    monkeypatch.setattr(pause, "pause", partial(pauses.append, None))
    items = [{"role": "user", "content": "a"}] * 2000

    converted = gevent.spawn(convert_input, items).get()

    assert len(converted) == len(items)
    assert len(pauses) >= 4


def seconds_for_calls(number: int) -> float:
    """Processor time for a request with that many calls in a row."""
    call = InputItem(type="function_call", call_id="c", name="f", arguments="{}")
    request = ResponsesRequest(input=[call] * number)
    start_s = time.process_time()
    chat = chat_request(request)
    seconds = time.process_time() - start_s
    assert [len(message["tool_calls"]) for message in chat.messages] == [number]
    return seconds


def test_consecutive_calls_are_converted_in_linear_time() -> None:
    """A copy of the earlier calls for each call would take sixteen times as long."""
    few_s = min(seconds_for_calls(6_000) for _ in range(3))
    many_s = min(seconds_for_calls(24_000) for _ in range(3))
    assert many_s < 9 * few_s
