"""Changes of vLLM 0.11.1 to responses."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import bad_request, internal
from app.core.versions.change import Answer, Change, Event, Reading
from app.core.versions.older_requests import objects_in
from app.extensions.responses.releases.v0_12 import is_object
from app.extensions.responses.releases.v0_21 import is_thought

PATHS = ("/v1/responses", "/v1/responses/{response_id}")
CALLS = ("function_call", "function_call_output")
NO_KEYS = "'ResponseReasoningItem' object is not subscriptable None"
TOOLS = (
    *("code_interpreter", "computer_use_preview", "custom", "file_search", "image_generation"),
    *("local_shell", "mcp", "web_search", "web_search_preview"),
)
OF_EVENTS = (
    *("conversation", "error", "incomplete_details"),
    *("prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
)
HARMONY = "gpt-oss"
BY_TURN = (
    "input_tokens_per_turn",
    "cached_tokens_per_turn",
    "output_tokens_per_turn",
    "tool_output_tokens_per_turn",
)


def count_once(answer: Any) -> None:
    """Removes the counts of each turn."""
    usage = answer.get("response", answer).get("usage")
    for details in usage.values() if isinstance(usage, dict) else ():
        for name in BY_TURN if isinstance(details, dict) else ():
            details.pop(name, None)


def refuse_tools(request: Any) -> None:
    """Refuses tools, which only the parser of gpt-oss reads.

    Tools that do not fit the schema have its errors.

    Raises:
        ApiError: 400.
    """
    request.pop("enable_response_messages", None)
    tools = request.get("tools")
    if not tools:
        request.pop("tool_choice", None)
    elif HARMONY not in str(request.get("model")) and all(map(_is_tool, objects_in(tools))):
        raise bad_request("Tool use is not supported in Responses API without Harmony None")


def _is_tool(tool: JsonObject) -> bool:
    """Returns whether a tool fits the schema, by its type and name."""
    return tool.get("type") in TOOLS or (tool.get("type") == "function" and "name" in tool)


def repeat_choice(answer: Any, request: JsonObject) -> None:
    """Repeats the choice among no tools."""
    if not request.get("tools") and isinstance(request.get("tool_choice"), str):
        answer["tool_choice"] = request["tool_choice"]


def fail_at_items(request: Any) -> None:
    """Fails at items of the input that are not messages.

    Raises:
        ApiError: 500 for a call, 400 for a thought that is read as an object.
    """
    for item in objects_in(request.get("input")):
        if item.get("type") in CALLS:
            raise internal("'role'")
        if is_thought(item) and is_object(item):
            raise bad_request(NO_KEYS)


def widen(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that adds the fields that responses in events have."""

    def older(event: Event) -> Iterator[Event]:
        response: Any = event[1].get("response")
        if isinstance(response, dict):
            for name in OF_EVENTS:
                response.setdefault(name, None)
        yield event

    return older


CHANGES = (
    Change(
        area="Responses",
        before="`tool_choice` has no effect without tools.",
        after="`tool_choice: required` requires a call, also without tools.",
        forms=(Answer(paths=PATHS[:1], whole=repeat_choice),),
        routes=PATHS[:1],
    ),
    Change(
        area="Responses",
        before="Calls and their outputs in the input fail with 500, thoughts with a text with 400.",
        after="Calls and their outputs are accepted. All thoughts fail with 500.",
        forms=(Reading(paths=PATHS[:1], read=fail_at_items),),
    ),
    Change(
        area="Responses",
        before="Responses in events have `conversation`, `error`, `prompt_cache_key` and other "
        "fields of OpenAI that are null.",
        after="They have the fields of whole responses.",
        forms=(Answer(paths=PATHS, events=widen),),
    ),
    Change(
        area="Responses",
        before="`tools` are an error, unless the model is gpt-oss.",
        after="`tools` are accepted.",
        forms=(Reading(paths=PATHS[:1], read=refuse_tools),),
    ),
    Change(
        area="Responses",
        before="`usage` counts the tokens of all turns together.",
        after="`usage` counts those of each turn, too.",
        forms=(Answer(paths=PATHS, edit=count_once),),
    ),
)
