"""Changes of vLLM 0.24 to responses."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Answer, Change, Event
from app.core.versions.older_requests import has_chosen_call

PATHS = ("/v1/responses",)


def calls_schema(tools: Any) -> JsonObject:
    """Returns the schema of a reply that has to call tools."""
    calls: list[JsonObject] = []
    for tool in tools:
        name = {"type": "string", "enum": [tool.get("name")]}
        properties = {"name": name, "parameters": tool.get("parameters") or {}}
        calls.append({"properties": properties, "required": [*properties]})
    items = {"type": "object", "anyOf": calls}
    return {"type": "array", "minItems": 1, "items": items}


def with_format(response: Any, request: JsonObject) -> None:
    """Adds the schema of the calls as the format of the text."""
    tools: Any = request.get("tools")
    choice: Any = request.get("tool_choice")
    schema = calls_schema(tools)
    if isinstance(choice, dict):
        chosen = [tool for tool in tools if tool.get("name") == choice.get("name")]
        if not chosen:
            return
        schema = chosen[0].get("parameters") or {}
    form = {
        "name": "tool_calling_response",
        "schema": schema,
        "type": "json_schema",
        "description": None,
        "strict": True,
    }
    response["text"] = {"format": form, "verbosity": None}


def events_with_format(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that does the same in a stream."""

    def older(event: Event) -> Iterator[Event]:
        if "response" in event[1]:
            with_format(event[1]["response"], request)
        yield event

    return older


CHANGES = (
    Change(
        area="Responses",
        before="The response to a request that chooses a tool has the schema of the call as "
        "`text.format`.",
        after="`text` is that of the request.",
        forms=(
            Answer(
                paths=PATHS,
                whole=with_format,
                events=events_with_format,
                only=has_chosen_call,
                since="0.20.0",
            ),
        ),
        options=("enable-auto-tool-choice",),
    ),
)
