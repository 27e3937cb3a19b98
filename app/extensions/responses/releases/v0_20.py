"""Changes of vLLM 0.20 to responses."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError, bad_request
from app.core.versions.change import Answer, Change, Event, Reading
from app.extensions.responses.releases.v0_24 import calls_schema

PATHS = ("/v1/responses",)


def accept_required(request: Any) -> None:
    """Removes the choice of a tool where there is none."""
    if request.get("tool_choice") == "required" and not request.get("tools"):
        del request["tool_choice"]


def older_response(response: Any, request: JsonObject) -> None:
    """Repeats the choice of a tool, and names fields as Python does."""
    choice = request.get("tool_choice") or "auto"
    tools = request.get("tools")
    response["tool_choice"] = choice
    if choice == "required" and tools:
        response["text"] = {"format": _calls_format(tools), "verbosity": None}
    elif choice == "required":
        response["output"] = []
    form = (response.get("text") or {}).get("format")
    if isinstance(form, dict) and "schema" in form:
        form["schema_"] = form.pop("schema")
    response["tools"] = [*map(_renamed, response["tools"])]
    response["output"] = [*map(_renamed, response["output"])]


def older_events(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that does the same in a stream."""

    def older(event: Event) -> Iterator[Event]:
        data: Any = event[1]
        if "response" in data:
            response = data["response"]
            older_response(response, request)
            for field in ("input_messages", "output_messages"):
                if response.get(field):
                    response[field] = [json.dumps(message) for message in response[field]]
        if isinstance(data.get("item"), dict):
            data["item"] = _renamed(data["item"])
        yield event

    return older


def _calls_format(tools: Any) -> JsonObject:
    """Returns the format of a reply that has to call tools."""
    return {
        "name": "tool_calling_response",
        "schema_": calls_schema(tools),
        "type": "json_schema",
        "description": "Response format for tool calling",
        "strict": True,
    }


def fail_with_name(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of the choice of a tool that is not there."""
    choice = request.get("tool_choice") if isinstance(request, dict) else None
    if "Tool choice 'function' not found" not in error.message or not isinstance(choice, dict):
        return None
    name = choice.get("name")
    return bad_request(f"Tool {name!r} has not been passed in `tools`.")


def _renamed(item: Any) -> Any:
    """Returns a tool or an item with the field `async_`."""
    if not isinstance(item, dict):
        return item
    renamed = {"async_" if name == "async" else name: value for name, value in item.items()}
    if isinstance(renamed.get("tools"), list):
        renamed["tools"] = [*map(_renamed, renamed["tools"])]
    return renamed


CHANGES = (
    Change(
        area="Responses",
        before="`tool_choice` is `auto` without tools, and `required` is accepted.",
        after="`tool_choice` is `none` without tools, and `required` is an error.",
        forms=(Reading(paths=PATHS, read=accept_required),),
    ),
    Change(
        area="Responses",
        before="Tools and calls have the field `async_`, and formats `schema_`. In streams, "
        "`input_messages` and `output_messages` are JSON as texts.",
        after="The fields are `async` and `schema`. The messages are objects.",
        forms=(Answer(paths=PATHS, whole=older_response, events=older_events),),
    ),
    Change(
        area="Responses",
        before="The choice of an unknown tool is an error that names no field.",
        after="The error names `tool_choice`.",
        forms=(Answer(paths=PATHS, failure=fail_with_name),),
    ),
)
