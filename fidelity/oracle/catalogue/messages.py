"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's SDK sends them."""

from fidelity.oracle.cases import MODEL, REMOVED, Area
from fidelity.oracle.catalogue.requests import (
    CONTEXT_WORDS,
    LONG_TEXT,
    MESSAGES,
    QUESTION,
    UNWRITTEN,
)

FIELDS: dict[str, object] = {"model": MODEL, "max_tokens": 6, "messages": QUESTION}
AREA = Area("messages", path=MESSAGES, fields=FIELDS)
COUNT = Area(
    "count tokens",
    path=f"{MESSAGES}/count_tokens",
    fields={"model": MODEL, "messages": QUESTION},
)
TIME_TOOL = {
    "name": "get_time",
    "description": "The time.",
    "input_schema": {"type": "object", "properties": {"zone": {"enum": ["UTC"]}}},
}

AREA.case("smallest", "Every client reads this answer.")
AREA.case("stream", "The order of events is contract.", {"stream": True})
AREA.case(
    "with the headers of the SDK",
    "Versions and betas are ignored.",
    headers={
        "Content-Type": "application/json",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "x",
        "x-api-key": "k",
    },
)
AREA.sweep(
    "Limits, conversions and null are contract.",
    {
        "model": ["none", REMOVED, None],
        "max_tokens": [0, -1, 1, "3", REMOVED, None, 100_000],
        "temperature": [-1, 0, 1, 3, None],
        "top_p": [0, 0.5, 1.1],
        "top_k": [0, 5, -2],
        "stop_sequences": [[UNWRITTEN], [], UNWRITTEN, [UNWRITTEN] * 5, None],
        "system": ["Be short.", "", [{"type": "text", "text": "Be short."}], [{"type": "x"}], 5],
        "metadata": [{"user_id": "u"}, {}, "x"],
        "thinking": [
            {"type": "enabled", "budget_tokens": 1024},
            {"type": "enabled", "budget_tokens": 10},
            {"type": "enabled"},
            {"type": "disabled"},
            {"type": "adaptive"},
            {"type": "what"},
        ],
        "output_config": [{"effort": "low"}, {}],
        "service_tier": ["auto"],
        "stream": ["x", None],
        "kv_transfer_params": [{"do_remote_decode": True}],
        "cache_salt": ["t", ""],
        "unknown": [1],
    },
    words=CONTEXT_WORDS,
)
AREA.case(
    "prompt too long",
    "Agents read this.",
    {"messages": [{"role": "user", "content": LONG_TEXT}]},
    words=CONTEXT_WORDS,
)
AREA.case(
    "prompt too long in a stream",
    "Agents read this.",
    {"messages": [{"role": "user", "content": LONG_TEXT}], "stream": True},
    words=CONTEXT_WORDS,
)


def _user(*blocks: object) -> list[object]:
    return [{"role": "user", "content": list(blocks)}]


TEXT_BLOCK = {"type": "text", "text": "Hi"}
IMAGE_BLOCK = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}
USE_BLOCK = {"type": "tool_use", "id": "t1", "name": "get_time", "input": {"zone": "UTC"}}
RESULT_BLOCK = {"type": "tool_result", "tool_use_id": "t1", "content": "noon"}
CONTENTS: dict[str, object] = {
    "blocks": _user(TEXT_BLOCK, TEXT_BLOCK),
    "no blocks": _user(),
    "unknown block": _user({"type": "smell"}),
    "image": _user(IMAGE_BLOCK),
    "cache control": _user({**TEXT_BLOCK, "cache_control": {"type": "ephemeral"}}),
    "tool result": [
        *QUESTION,
        {"role": "assistant", "content": [USE_BLOCK]},
        {"role": "user", "content": [RESULT_BLOCK]},
    ],
    "tool result of blocks": [
        *QUESTION,
        {"role": "assistant", "content": [TEXT_BLOCK, USE_BLOCK]},
        {"role": "user", "content": [{**RESULT_BLOCK, "content": [TEXT_BLOCK]}, TEXT_BLOCK]},
    ],
    "tool result without a use": _user(RESULT_BLOCK),
    "thinking": [
        *QUESTION,
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, TEXT_BLOCK],
        },
        *QUESTION,
    ],
    "assistant last": [*QUESTION, {"role": "assistant", "content": "Red"}],
    "system role": [{"role": "system", "content": "Be short."}, *QUESTION],
    "unknown role": [{"role": "robot", "content": "Hi"}],
    "empty": [],
    "a string": "Hi",
    "null": None,
    "without content": [{"role": "user"}],
}
for name, messages in CONTENTS.items():
    AREA.case(name, "Messages have blocks of many types.", {"messages": messages})
    COUNT.case(name, "Counts agree with prompts.", {"messages": messages})
GENERATED = ("content", "content_block", "delta", "output_tokens", "stop_reason")
"""Fields of an answer whose call a random model does not complete."""
TOOL_VARIANTS: dict[str, dict[str, object]] = {
    "any": {"tools": [TIME_TOOL], "tool_choice": {"type": "any"}, "max_tokens": 60},
    "named": {
        "tools": [TIME_TOOL],
        "tool_choice": {"type": "tool", "name": "get_time"},
        "max_tokens": 60,
    },
    "any in a stream": {
        "tools": [TIME_TOOL],
        "tool_choice": {"type": "any"},
        "max_tokens": 60,
        "stream": True,
    },
    "none": {"tools": [TIME_TOOL], "tool_choice": {"type": "none"}},
    "named without a name": {"tools": [TIME_TOOL], "tool_choice": {"type": "tool"}},
    "named but unknown": {
        "tools": [TIME_TOOL],
        "tool_choice": {"type": "tool", "name": "nope"},
    },
    "unknown choice": {"tools": [TIME_TOOL], "tool_choice": {"type": "always"}},
    "choice without tools": {"tool_choice": {"type": "any"}},
    "tool without a schema": {"tools": [{"name": "f"}], "tool_choice": {"type": "none"}},
    "tool of a server": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "single use": {
        "tools": [TIME_TOOL],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "max_tokens": 60,
    },
}
AREA.variants("Tools have a form of their own.", TOOL_VARIANTS, ignored=GENERATED)
COUNT.case("smallest", "The count is that of the prompt.")
COUNT.case("with a system prompt", "It counts.", {"system": "Be short."})
COUNT.case("with tools", "They count.", {"tools": [TIME_TOOL]})
COUNT.case("with thinking", "It changes nothing.", {"thinking": {"type": "disabled"}})
COUNT.case("of an unknown model", "404.", {"model": "none"})
COUNT.case(
    "of a long prompt",
    "It is only counted.",
    {"messages": _user({**TEXT_BLOCK, "text": LONG_TEXT})},
)
AREAS = (AREA, COUNT)
