"""Exports of OpenTelemetry: calls of models with the attributes `gen_ai.*`.

See https://opentelemetry.io/docs/specs/semconv/gen-ai/. A span does not name the API that was
called, so the rules have no condition on the API.
"""

from config.untrusted import INVALID
from workbench.imports.cassette import import_interactions
from workbench.imports.fixture_format import Records
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
)
from workbench.imports.otlp_calls import Call, calls_in
from workbench.imports.otlp_messages import reply_messages, sent_messages
from workbench.imports.records import (
    as_json,
    error_status,
    interaction,
    list_damaged,
)

CHAT = "/v1/chat/completions"
OTHER_OPERATIONS = ("execute_tool", "invoke_agent", "create_agent", "invoke_workflow", "retrieval")
"""Operations of a framework around a model. The calls of the model have spans of their own."""
EMBEDDINGS = "embeddings"
MESSAGE_KEYS = ("role", "content", "reasoning", "tool_calls", "tool_call_id")
FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "max_tokens": "length",
}
"""Finish reasons of other providers, and the names that chats have for them."""
STATUS_KEYS = ("http.response.status_code", "http.status_code", "error.type")
"""Attributes that may have the status of an error."""


def is_otlp(records: Records) -> bool:
    """Returns whether the log has a call of a model."""
    return any(calls_in([record]) for record in records.found)


def import_otlp(records: Records, script: ImportedScript) -> Json:
    """Adds a rule for each call of a model, and returns the schemas of the tools by name."""
    interactions: list[object] = []
    for call in calls_in(records.found):
        operation = call.value("gen_ai.operation.name")
        if operation in OTHER_OPERATIONS:
            script.ignored.append(f"ignored: a span of {operation}, which asks no model")
            continue
        try:
            interactions.append(_interaction(call))
        except INVALID as error:
            interactions.append(error)
    list_damaged(records, script)
    tools = import_interactions(interactions, script, noun="call")
    for rule in script.rules:
        rule["when"].pop("api", None)
    return tools


def _interaction(call: Call) -> Json:
    """Returns the interaction of a cassette.

    Raises:
        ImportFormatError: the texts were not captured.
        one of INVALID: the attributes have another form.
    """
    if call.value("gen_ai.operation.name") == EMBEDDINGS:
        raise ImportFormatError("a span of an embedding does not have the vector")
    messages = [_message(message) for message in sent_messages(call)]
    if not messages:
        raise ImportFormatError(
            "its messages were not captured (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT)"
        )
    sent: Json = {
        "model": call.value("gen_ai.request.model", "gen_ai.response.model"),
        "messages": messages,
        "max_tokens": call.value("gen_ai.request.max_tokens"),
        "tools": _tools_of(call),
    }
    replies = reply_messages(call)
    if not replies and call.error is not None:
        status = error_status(*map(call.value, STATUS_KEYS))
        return interaction(CHAT, sent, {"error": {"message": call.error}}, status=status)
    if not replies:
        raise ImportFormatError("its reply was not captured")
    choices: list[Json] = []
    for number, reply in enumerate(replies):
        finish = reply.get("finish_reason") or _finish_of(call)
        choices.append(
            {
                "index": number,
                "message": {**_message(reply), "role": "assistant"},
                "finish_reason": FINISHES.get(str(finish), finish),
            }
        )
    usage = {
        "prompt_tokens": call.value("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        "completion_tokens": call.value(
            "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"
        ),
    }
    return interaction(CHAT, sent, {"choices": choices, "usage": usage})


def _message(message: Json) -> Json:
    """Returns the fields of a message that a chat has, without those of its event."""
    return {key: message[key] for key in MESSAGE_KEYS if message.get(key) is not None}


def _finish_of(call: Call) -> object:
    """Returns the first finish reason of the attributes; `stop` without any."""
    reasons = as_json(call.value("gen_ai.response.finish_reasons"))
    if isinstance(reasons, list) and reasons:
        return reasons[0]
    return reasons or "stop"


def _tools_of(call: Call) -> object:
    """Returns the definitions of the tools; None without any."""
    tools = as_json(call.value("gen_ai.tool.definitions", "gen_ai.request.tools"))
    return tools if isinstance(tools, list) else None
