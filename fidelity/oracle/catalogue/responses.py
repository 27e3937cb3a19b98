"""POST /v1/responses: inputs, fields, streams, stored and background responses."""

from fidelity.oracle.cases import MODEL, REMOVED, Area
from fidelity.oracle.catalogue.requests import (
    COLOR_SCHEMA,
    CONTEXT_WORDS,
    LONG_TEXT,
    RESPONSES,
    UNWRITTEN,
)

FIELDS: dict[str, object] = {
    "model": MODEL,
    "input": "Name a color.",
    "max_output_tokens": 8,
    "ignore_eos": True,
}
AREA = Area("responses", path=RESPONSES, fields=FIELDS, values=("status", "reason"))
INPUTS = Area("response inputs", path=RESPONSES, fields=FIELDS)
STORED = Area("stored responses", path=RESPONSES, fields=FIELDS, configuration="lora")
TIME_TOOL = {
    "type": "function",
    "name": "get_time",
    "parameters": {
        "type": "object",
        "properties": {"zone": {"enum": ["UTC"]}},
        "required": ["zone"],
        "additionalProperties": False,
    },
    "strict": True,
}
CALL_LIMIT = {"max_output_tokens": 200, "ignore_eos": False}

AREA.case("smallest", "Every client reads this answer.")
AREA.case("stream", "The order of events is contract.", {"stream": True})
AREA.each(
    "max_output_tokens",
    "The limit is checked.",
    [0, -1, 1, "3", None, 100_000],
    words=CONTEXT_WORDS,
)
AREA.sweep(
    "Limits, conversions and echoed values are contract.",
    {
        "model": ["none", REMOVED, None],
        "temperature": [-1, 0, 2, 3, None],
        "top_p": [0, 0.5, 1.1],
        "top_k": [0, -2],
        "top_logprobs": [0, 2, 21, -1],
        "truncation": ["auto", "disabled", "left", None],
        "service_tier": ["auto", "flex", "priority", "none"],
        "store": [True, False, None, "x"],
        "background": [True, "x"],
        "parallel_tool_calls": [False, None],
        "max_tool_calls": [0, 3, -1],
        "metadata": [{}, {"a": "b"}, {"a": 1}, "x"],
        "instructions": ["Be short.", "", 5],
        "include": [
            [],
            ["message.output_text.logprobs"],
            ["reasoning.encrypted_content"],
            ["nothing"],
            "x",
        ],
        "user": ["u"],
        "reasoning": [{"effort": "low"}, {"effort": "huge"}, {"summary": "auto"}, {}, None],
        "text": [
            {"format": {"type": "text"}},
            {"format": {"type": "json_object"}},
            {"format": {"type": "json_schema", "name": "c", "schema": COLOR_SCHEMA}},
            {"format": {"type": "json_schema", "schema": COLOR_SCHEMA}},
            {"format": {"type": "yaml"}},
            {"verbosity": "low"},
            {},
        ],
        "prompt": [{"id": "p"}],
        "prompt_cache_key": ["k", 5],
        "prompt_cache_retention": ["24h", "in-memory"],
        "safety_identifier": ["s"],
        "previous_response_id": ["resp_none", "none", 5],
        "seed": [1],
        "stop": [UNWRITTEN, [UNWRITTEN]],
        "cache_salt": ["t", ""],
        "priority": [1],
        "request_id": ["resp_mine"],
        "stream_options": [{"include_obfuscation": False}],
        "conversation": ["c"],
        "enable_response_messages": [True],
        "kv_transfer_params": [{"do_remote_decode": True}],
        "chat_template_kwargs": [{"a": 1}],
        "spaces_between_special_tokens": [True],
    },
)
AREA.variants(
    "Tools have a flat form here.",
    {
        "required": {"tools": [TIME_TOOL], "tool_choice": "required", **CALL_LIMIT},
        "named": {
            "tools": [TIME_TOOL],
            "tool_choice": {"type": "function", "name": "get_time"},
            **CALL_LIMIT,
        },
        "required in a stream": {
            "tools": [TIME_TOOL],
            "tool_choice": "required",
            **CALL_LIMIT,
            "stream": True,
        },
        "none": {"tools": [TIME_TOOL], "tool_choice": "none"},
        "named but unknown": {
            "tools": [TIME_TOOL],
            "tool_choice": {"type": "function", "name": "nope"},
        },
        "tool of a chat": {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "built-in tool": {"tools": [{"type": "web_search_preview"}]},
        "code interpreter": {
            "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]
        },
        "unknown tool": {"tools": [{"type": "hammer"}]},
        "choice without tools": {"tool_choice": "required"},
        "MCP": {"tools": [{"type": "mcp", "server_label": "a", "server_url": "http://a"}]},
    },
    ignored=("arguments",),
)
AREA.variants(
    "Events of a stream differ by what is requested.",
    {
        "stream with log probabilities": {
            "stream": True,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
        },
        "stream with a format": {"stream": True, "text": {"format": {"type": "json_object"}}},
        "stream in the background": {"stream": True, "background": True},
        "stream that fails": {"stream": True, "input": LONG_TEXT},
        "structured choice": {
            "structured_outputs": {"choice": ["red"]},
            "max_output_tokens": 20,
            "ignore_eos": False,
        },
        "stream of a structured choice": {
            "structured_outputs": {"choice": ["red"]},
            "max_output_tokens": 20,
            "ignore_eos": False,
            "stream": True,
        },
    },
)
AREA.case("input too long", "Agents read this.", {"input": LONG_TEXT}, words=CONTEXT_WORDS)
AREA.get(f"{RESPONSES}/resp_none", "Nothing is stored by default.")
AREA.case("cancel", "Nothing is stored by default.", path=f"{RESPONSES}/resp_none/cancel")


def _message(content: object, role: str = "user") -> dict[str, object]:
    return {"type": "message", "role": role, "content": content}


CALL_ITEM = {
    "type": "function_call",
    "call_id": "c1",
    "name": "get_time",
    "arguments": "{}",
}
INPUTS.variants(
    "Items of an input have many forms.",
    {
        "message": {"input": [_message("Hi")]},
        "message without a type": {"input": [{"role": "user", "content": "Hi"}]},
        "parts": {"input": [_message([{"type": "input_text", "text": "Hi"}])]},
        "image": {
            "input": [_message([{"type": "input_image", "image_url": "data:image/png;base64,AA"}])]
        },
        "unknown part": {"input": [_message([{"type": "smell"}])]},
        "system": {"input": [_message("Be short.", "system"), _message("Hi")]},
        "developer": {"input": [_message("Be short.", "developer"), _message("Hi")]},
        "unknown role": {"input": [_message("Hi", "robot")]},
        "assistant": {
            "input": [
                _message("Hi"),
                {
                    "type": "message",
                    "role": "assistant",
                    "id": "msg_1",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Red", "annotations": []}],
                },
                _message("Why?"),
            ]
        },
        "call and output": {
            "input": [
                _message("Hi"),
                CALL_ITEM,
                {"type": "function_call_output", "call_id": "c1", "output": "noon"},
            ]
        },
        "output without a call": {
            "input": [{"type": "function_call_output", "call_id": "c9", "output": "noon"}]
        },
        "reasoning": {
            "input": [
                _message("Hi"),
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
                _message("Why?"),
            ]
        },
        "reference": {"input": [{"type": "item_reference", "id": "msg_1"}]},
        "unknown item": {"input": [{"type": "smell"}]},
        "strings": {"input": ["Hi"]},
        "empty": {"input": []},
        "empty text": {"input": ""},
        "absent": {"input": REMOVED},
        "null": {"input": None},
        "number": {"input": 5},
    },
)

STORED.case("store", "A stored response has an id.", {"store": True}, keep={"STORED": "id"})
STORED.get(f"{RESPONSES}/${{STORED}}", "It can be read.")
STORED.get(f"{RESPONSES}/${{STORED}}?stream=true", "Only background streams can be read again.")
STORED.case(
    "continue",
    "It can be continued.",
    {"previous_response_id": "${STORED}", "input": "Why?"},
)
STORED.case("continue an unknown one", "404.", {"previous_response_id": "resp_unknown"})
STORED.case("continue an odd id", "400.", {"previous_response_id": "x"})
STORED.case("not stored", "It has no entry.", {"store": False}, keep={"UNSTORED": "id"})
STORED.get(f"{RESPONSES}/${{UNSTORED}}", "It has no entry.")
STORED.case("cancel a completed one", "It is too late.", path=f"{RESPONSES}/${{STORED}}/cancel")
STORED.case("cancel an unknown one", "404.", path=f"{RESPONSES}/resp_unknown/cancel")
STORED.get(f"{RESPONSES}/resp_unknown", "404.")
STORED.get(f"{RESPONSES}/x", "An id begins with resp_.")
STORED.get(f"{RESPONSES}/${{STORED}}/input_items", "There is no such route.")
STORED.case(
    "delete", "There is no such route.", method="DELETE", path=f"{RESPONSES}/${{STORED}}", body=None
)
STORED.case(
    "background",
    "It is answered at once.",
    {"background": True, "max_output_tokens": 200, "ignore_eos": True},
    keep={"BACKGROUND": "id"},
    values=("status",),
)
STORED.case(
    "cancel a running one",
    "Its status is cancelled.",
    path=f"{RESPONSES}/${{BACKGROUND}}/cancel",
    values=("status",),
)
STORED.get(f"{RESPONSES}/${{BACKGROUND}}", "It stays cancelled.", values=("status",))
STORED.case(
    "background without storing", "They exclude each other.", {"background": True, "store": False}
)
STORED.case(
    "background stream",
    "Its events can be read again.",
    {"background": True, "stream": True},
)
STORED.case(
    "id of the client", "It is kept.", {"request_id": "resp_client"}, words=("resp_client",)
)
AREAS = (AREA, INPUTS, STORED)
