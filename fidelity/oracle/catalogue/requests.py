"""Parts that requests of several areas have in common."""

from collections.abc import Sequence

from fidelity.oracle.cases import MODEL

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
SENTENCE = "The river runs past the mill and into the sea."
QUESTION = [{"role": "user", "content": "Name a color."}]
LONG_TEXT = "word " * 3000
"""More tokens than the server's context has."""
UNWRITTEN = "zzzzzz"
"""A stop string that no answer has: a random model would end an answer at a shorter one."""
CHAT_FIELDS: dict[str, object] = {
    "model": MODEL,
    "messages": QUESTION,
    "max_tokens": 4,
    "ignore_eos": True,
}
COMPLETION_FIELDS: dict[str, object] = {
    "model": MODEL,
    "prompt": SENTENCE,
    "max_tokens": 4,
    "ignore_eos": True,
}
"""Answers end at the limit, so that the model has no part in their ends."""
USAGE = {"include_usage": True}
CONTEXT_WORDS = (
    r"maximum context length is \d+ tokens",
    r"requested \d+ output tokens",
    r"at least \d+ input tokens",
    r"parameter=\w+",
)
"""Words by which agents notice that a conversation is too long."""
COLOR_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {
        "color": {"type": "string", "enum": ["red", "blue"]},
        "shade": {"type": "integer", "minimum": 1, "maximum": 3},
    },
    "required": ["color", "shade"],
    "additionalProperties": False,
}


def function_tool(name: str, properties: dict[str, object], **options: object) -> dict[str, object]:
    """Returns a tool of a chat; all properties are required. `more` adds fields to the function."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": f"Call {name}.", "parameters": parameters, **options}
    return {"type": "function", "function": function}


WEATHER_TOOL = function_tool("get_weather", {"city": {"type": "string"}})
CLOCK_TOOL = function_tool("get_time", {"zone": {"type": "string", "enum": ["UTC", "CET"]}})
STRICT_TOOL = function_tool("get_zone", {"zone": {"type": "string", "enum": ["UTC"]}}, strict=True)
"""A tool whose arguments the real engine constrains, so that a random model completes a call."""
TOOLS = [WEATHER_TOOL, CLOCK_TOOL]


def scripted(text: str, tools: Sequence[object] = TOOLS) -> dict[str, object]:
    """Returns fields that make a chat answer with `text`, which the tool parser then reads."""
    return {
        "tools": tools,
        "tool_choice": "auto",
        "structured_outputs": {"choice": [text]},
        "max_tokens": 200,
    }


SCRIPTED_VALUES = ("content", "name", "arguments", "finish_reason", "text")
"""Fields that a scripted answer determines."""
