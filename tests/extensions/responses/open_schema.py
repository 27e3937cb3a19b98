"""The Open Responses specification as JSON schemas: the keys that it requires, and their types.

Its OpenAPI document of 2026-04-24 has the facts. Further keys are allowed everywhere.
"""

from typing import Any

from jsonschema import Draft202012Validator

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
SWITCH: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}
ANY_OBJECT: Schema = {"type": "object"}


def listed(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, NULL]}


def items(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def keys(required: Schema, optional: Schema | None = None) -> Schema:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | (optional or {}),
    }


STATUS = listed("in_progress", "completed", "incomplete")
TOP_LOGPROB = keys({"token": TEXT, "logprob": NUMBER, "bytes": items(WHOLE)})
LOGPROB = keys(
    {
        "token": TEXT,
        "logprob": NUMBER,
        "bytes": items(WHOLE),
        "top_logprobs": items(TOP_LOGPROB),
    }
)
OUTPUT_TEXT = keys(
    {"type": listed("output_text"), "text": TEXT, "annotations": items(ANY_OBJECT)},
    {"logprobs": items(LOGPROB)},
)
REASONING_TEXT = keys({"type": listed("reasoning_text"), "text": TEXT})
PART: Schema = {"anyOf": [OUTPUT_TEXT, REASONING_TEXT]}
MESSAGE = keys(
    {
        "type": listed("message"),
        "id": TEXT,
        "status": STATUS,
        "role": listed("user", "assistant", "system", "developer"),
        "content": items(PART),
    },
    {"phase": listed("commentary", "final_answer")},
)
FUNCTION_CALL = keys(
    {
        "type": listed("function_call"),
        "id": TEXT,
        "call_id": TEXT,
        "name": TEXT,
        "arguments": TEXT,
        "status": STATUS,
    }
)
REASONING = keys(
    {"type": listed("reasoning"), "id": TEXT, "summary": items(PART), "status": STATUS},
    {"content": items(PART), "encrypted_content": TEXT},
)
EXTENSION = keys({"type": listed("custom_tool_call"), "id": TEXT, "status": STATUS})
"""An item that the specification lacks: every item has an id, a type and a status."""
ITEM: Schema = {"anyOf": [MESSAGE, FUNCTION_CALL, REASONING, EXTENSION]}
ERROR = keys({"code": TEXT, "message": TEXT})
TOOL = keys(
    {
        "type": listed("function"),
        "name": TEXT,
        "description": nullable(TEXT),
        "parameters": nullable(ANY_OBJECT),
        "strict": nullable(SWITCH),
    }
)
TOOL_CHOICE_MODE = listed("none", "auto", "required")
FUNCTION_CHOICE = keys({"type": listed("function")}, {"name": TEXT})
ALLOWED_TOOLS = keys(
    {
        "type": listed("allowed_tools"),
        "tools": items(FUNCTION_CHOICE),
        "mode": TOOL_CHOICE_MODE,
    }
)
TEXT_FORMAT: Schema = {
    "anyOf": [
        keys({"type": listed("text", "json_object")}),
        keys(
            {
                "type": listed("json_schema"),
                "name": TEXT,
                "description": nullable(TEXT),
                "schema": nullable(ANY_OBJECT),
                "strict": SWITCH,
            }
        ),
    ]
}
USAGE = keys(
    {
        "input_tokens": WHOLE,
        "output_tokens": WHOLE,
        "total_tokens": WHOLE,
        "input_tokens_details": keys({"cached_tokens": WHOLE}),
        "output_tokens_details": keys({"reasoning_tokens": WHOLE}),
    }
)
RESPONSE = keys(
    {
        "id": TEXT,
        "object": listed("response"),
        "created_at": WHOLE,
        "completed_at": nullable(WHOLE),
        "status": TEXT,
        "incomplete_details": nullable(keys({"reason": TEXT})),
        "model": TEXT,
        "previous_response_id": nullable(TEXT),
        "instructions": nullable(TEXT),
        "output": items(ITEM),
        "error": nullable(ERROR),
        "tools": items(TOOL),
        "tool_choice": {"anyOf": [TOOL_CHOICE_MODE, FUNCTION_CHOICE, ALLOWED_TOOLS]},
        "truncation": listed("auto", "disabled"),
        "parallel_tool_calls": SWITCH,
        "text": keys({"format": TEXT_FORMAT}, {"verbosity": listed("low", "medium", "high")}),
        "top_p": NUMBER,
        "presence_penalty": NUMBER,
        "frequency_penalty": NUMBER,
        "top_logprobs": WHOLE,
        "temperature": NUMBER,
        "reasoning": nullable(keys({"effort": nullable(TEXT), "summary": nullable(TEXT)})),
        "usage": nullable(USAGE),
        "max_output_tokens": nullable(WHOLE),
        "max_tool_calls": nullable(WHOLE),
        "store": SWITCH,
        "background": SWITCH,
        "service_tier": TEXT,
        "metadata": ANY_OBJECT,
        "safety_identifier": nullable(TEXT),
        "prompt_cache_key": nullable(TEXT),
        "user": nullable(TEXT),
    }
)
ERROR_PAYLOAD = keys(
    {"type": TEXT, "code": nullable(TEXT), "message": TEXT, "param": nullable(TEXT)}
)
PLACE = {"output_index": WHOLE}
ITEM_PLACE = PLACE | {"item_id": TEXT}
CONTENT_PLACE = ITEM_PLACE | {"content_index": WHOLE}
EVENTS: dict[str, Schema] = {
    "response.created": {"response": RESPONSE},
    "response.in_progress": {"response": RESPONSE},
    "response.completed": {"response": RESPONSE},
    "response.incomplete": {"response": RESPONSE},
    "response.failed": {"response": RESPONSE},
    "response.output_item.added": PLACE | {"item": ITEM},
    "response.output_item.done": PLACE | {"item": ITEM},
    "response.content_part.added": CONTENT_PLACE | {"part": PART},
    "response.content_part.done": CONTENT_PLACE | {"part": PART},
    "response.output_text.delta": CONTENT_PLACE | {"delta": TEXT, "logprobs": items(LOGPROB)},
    "response.output_text.done": CONTENT_PLACE | {"text": TEXT, "logprobs": items(LOGPROB)},
    "response.reasoning.delta": CONTENT_PLACE | {"delta": TEXT},
    "response.reasoning.done": CONTENT_PLACE | {"text": TEXT},
    "response.function_call_arguments.delta": ITEM_PLACE | {"delta": TEXT},
    "response.function_call_arguments.done": ITEM_PLACE | {"arguments": TEXT},
    "response.custom_tool_call_input.delta": ITEM_PLACE | {"delta": TEXT},
    "response.custom_tool_call_input.done": ITEM_PLACE | {"input": TEXT},
    "error": {"error": ERROR_PAYLOAD},
}
"""Keys of events besides `type` and `sequence_number`."""


def flaws(value: object, schema: Schema) -> list[str]:
    """Returns the path and the message of each violation."""
    return [
        f"{error.json_path}: {error.message}"
        for error in Draft202012Validator(schema).iter_errors(value)
    ]


def event_flaws(event: dict[str, Any]) -> list[str]:
    """Returns the violations of an event of a stream; an unknown type is one."""
    kind = event["type"]
    if kind not in EVENTS:
        return [f"unknown type {kind}"]
    return flaws(event, keys({"type": listed(kind), "sequence_number": WHOLE} | EVENTS[kind]))
