"""Requests whose prompts are compared: what people send, and random messages.

A request is the name of its API with a body: `chat`, `tokenize`, `responses` or `messages`.
"""

import random
from collections.abc import Sequence
from typing import Any

Body = dict[str, Any]
Requests = dict[str, tuple[str, Body]]
"""API and body by name."""
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Name"},
        "unit": {"enum": ["c", "f"], "type": "string"},
    },
    "required": ["city"],
}
FUNCTION = {"description": "Weather of a city", "name": "get_weather", "parameters": SCHEMA}
TOOLS = [{"function": FUNCTION, "type": "function"}]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": 'What is 2 < 3 & "five"? é 😀 水'}
ANSWER = {"role": "assistant", "content": "Yes."}
ARGUMENTS = '{"unit": "c", "city": "Rome"}'
BILLING = "x-anthropic-billing-header: cch=1;\nBe brief."
JSON_VALUES = (1, "x", None, True, {"b": 1, "a": [1, {"d": 1, "c": 2}]})
NAMES = ("index", "cache_control", "extra_content", "other")
TEXTS = ("hi", "", "two\nlines", " padded ", BILLING)
ROLES = ("system", "user", "user", "assistant", "assistant", "tool", "developer", "function")
CALL_ARGUMENTS = (ARGUMENTS, "{}", "", '{"city": ', "[1]", '{"n": 1e5, "s": "é"}')
SCHEMAS: tuple[Body | None, ...] = (None, {}, SCHEMA, {"properties": {}, "type": "object"})


def requests(random_count: int, seed: int) -> Requests:
    """Returns all requests."""
    found: Requests = {}
    for name, body in CHATS.items():
        found[f"chat/{name}"] = "chat", body
        is_prompt = body.keys() <= {"messages", "tools", "chat_template_kwargs"}
        if is_prompt and "tool" in name:
            found[f"tokenize/{name}"] = "tokenize", body
    for name, body in RESPONSES.items():
        found[f"responses/{name}"] = "responses", body
    for name, body in MESSAGES.items():
        found[f"messages/{name}"] = "messages", body | {"model": "m", "max_tokens": 5}
    writer = _RandomChats(random.Random(seed))
    for number in range(random_count):
        found[f"random/{seed}/{number}"] = "chat", writer.body()
    return found


def _chat(*messages: Body, tools: Sequence[Body] | None = None, **fields: Any) -> Body:
    body = {"messages": list(messages), **fields}
    return body if tools is None else body | {"tools": tools}


def _call(arguments: str, call_id: str = "call00001") -> Body:
    function = {"name": "get_weather", "arguments": arguments}
    return {"type": "function", "function": function, "id": call_id}


def _calls(*calls: Body, content: str | None = "") -> Body:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def _result(content: Any, call_id: str = "call00001", **fields: Any) -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **fields}


def _text(text: str, **fields: Any) -> Body:
    return {"type": "text", "text": text, **fields}


CALL = _calls(_call(ARGUMENTS))
TWO_CALLS = _calls(_call(ARGUMENTS), _call("{}", "call00002"), content=None)
CACHED = {"cache_control": {"type": "ephemeral"}}
THOUGHT = ANSWER | {"reasoning": "hm"}
NEXT = {"role": "user", "content": "And?"}
NO_PROMPT: Body = {"add_generation_prompt": False}
CHATS: dict[str, Body] = {
    "user": _chat(USER),
    "content first": _chat({"content": "hi", "role": "user"}, ANSWER, NEXT),
    "system": _chat(SYSTEM, USER),
    "developer": _chat({"role": "developer", "content": "Be brief."}, USER),
    "developer's tools": _chat({"role": "developer", "content": "d", "tools": TOOLS}, USER),
    "billing header": _chat({"role": "system", "content": BILLING}, USER),
    "turns": _chat(SYSTEM, USER, ANSWER, NEXT),
    "tools": _chat(SYSTEM, USER, tools=TOOLS),
    "tool result": _chat(USER, CALL, _result("sunny", name="get_weather"), tools=TOOLS),
    "tool result in parts": _chat(USER, CALL, _result([_text("a"), _text("b")]), tools=TOOLS),
    "tool call without content": _chat(
        USER, _calls(_call(ARGUMENTS), content=None), _result("sunny"), ANSWER, NEXT, tools=TOOLS
    ),
    "two tool calls": _chat(
        USER, TWO_CALLS, _result("sunny"), _result("rain", "call00002"), tools=TOOLS
    ),
    "broken arguments of a tool": _chat(USER, _calls(_call('{"city": ')), _result("?")),
    "no arguments of a tool": _chat(USER, _calls(_call("")), _result("sunny"), tools=TOOLS),
    "no prompt": _chat(USER, ANSWER, **NO_PROMPT),
    "continued": _chat(USER, ANSWER, **NO_PROMPT, continue_final_message=True),
    "thinking off": _chat(USER, chat_template_kwargs={"enable_thinking": False, "thinking": False}),
    "effort": _chat(USER, reasoning_effort="low"),
    "reasoning": _chat(USER, THOUGHT, NEXT),
    "parts": _chat(SYSTEM, {"role": "user", "content": [_text("a"), _text("b", **CACHED)]}),
    "documents": _chat(USER, documents=[{"title": "t", "text": "x"}]),
    "empty": _chat({"role": "user", "content": ""}),
    "assistant first": _chat(ANSWER, USER),
    "two users": _chat(USER, USER),
    "no user": _chat(SYSTEM),
}
ITEM_CALL = {
    "type": "function_call",
    "call_id": "call00001",
    "name": "get_weather",
    "arguments": ARGUMENTS,
}
ITEM_RESULT = {"type": "function_call_output", "call_id": "call00001", "output": "sunny"}
ITEM_THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "hm"}],
}
FLAT_TOOLS = [{"type": "function", **FUNCTION, "strict": True}]
RESPONSES: dict[str, Body] = {
    "text": {"input": "hi", "instructions": "Be brief."},
    "messages": {"input": [USER, ANSWER, {"role": "user", "content": "And?"}]},
    "call": {"input": [USER, ITEM_CALL, ITEM_RESULT], "tools": FLAT_TOOLS},
    "two calls": {
        "input": [USER, ITEM_CALL, ITEM_CALL | {"call_id": "call00002"}, ITEM_RESULT],
        "tools": FLAT_TOOLS,
    },
    "no function": {"input": "hi", "tools": [{"type": "web_search"}]},
    "thoughts": {"input": [USER, ITEM_THOUGHT, ITEM_CALL, ITEM_RESULT], "tools": FLAT_TOOLS},
}
TOOL_USE = {"type": "tool_use", "id": "call00001", "name": "get_weather", "input": {"city": "é"}}
BLOCK_RESULT = {"type": "tool_result", "tool_use_id": "call00001", "content": "sunny"}
BLOCK_TOOLS = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}]
MESSAGES: dict[str, Body] = {
    "text": {"messages": [USER], "system": "Be brief."},
    "empty tools": {"messages": [USER], "tools": []},
    "call": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": "ok"}, TOOL_USE]},
            {"role": "user", "content": [BLOCK_RESULT, {"type": "text", "text": "And?"}]},
        ],
        "tools": BLOCK_TOOLS,
    },
    "thoughts": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, TOOL_USE],
            },
            {"role": "user", "content": [BLOCK_RESULT]},
        ],
        "tools": BLOCK_TOOLS,
    },
}


class _RandomChats:
    """Valid chats whose objects have their keys in any order, and unknown keys."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def body(self) -> Body:
        rng = self._rng
        body: Body = {"messages": [self._message() for _ in range(rng.randint(1, 4))]}
        if rng.random() < 0.6:
            body["tools"] = [self._tool() for _ in range(rng.randint(1, 2))]
        return body

    def _message(self) -> Body:
        rng = self._rng
        role = rng.choice(ROLES)
        message: Body = {"role": role, "content": self._content()}
        if role == "assistant" and rng.random() < 0.7:
            message["tool_calls"] = [self._call() for _ in range(rng.randint(0, 2))]
        if role == "assistant" and rng.random() < 0.3:
            message[rng.choice(("reasoning", "reasoning_content"))] = rng.choice(("hm", "", None))
        if role == "tool":
            message["tool_call_id"] = "call00001"
        if role == "function":
            message |= {"content": "r", "name": "f"}
        if rng.random() < 0.2:
            message["name"] = "bob"
        return self._shuffled(message)

    def _content(self) -> str | list[Body]:
        rng = self._rng
        if rng.random() < 0.6:
            return rng.choice(TEXTS)
        return [self._shuffled(_text(rng.choice(TEXTS))) for _ in range(rng.randint(1, 3))]

    def _call(self) -> Body:
        call = _call(self._rng.choice(CALL_ARGUMENTS))
        call["function"] = self._shuffled(call["function"])
        return self._shuffled(call)

    def _tool(self) -> Body:
        rng = self._rng
        function: Body = {"name": rng.choice("fg"), "parameters": rng.choice(SCHEMAS)}
        optional = {"description": "d", "strict": True, "defer_loading": True}
        function |= {key: value for key, value in optional.items() if rng.random() < 0.3}
        tool: Body = {"type": "function", "function": self._shuffled(function)}
        if rng.random() < 0.2:
            tool["defer_loading"] = rng.random() < 0.5
        return self._shuffled(tool)

    def _shuffled(self, members: Body) -> Body:
        rng = self._rng
        items = list(members.items())
        if rng.random() < 0.3:
            items.append((rng.choice(NAMES), rng.choice(JSON_VALUES)))
        rng.shuffle(items)
        return dict(items)
