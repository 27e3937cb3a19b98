"""Changes of vLLM 0.24 to chats and completions."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError, internal
from app.core.versions.change import Answer, Change, Event, Reading, Rules
from app.core.versions.chosen_calls import CallStarts
from app.core.versions.older_requests import has_chosen_call, objects_in
from app.core.versions.paths import (
    CHATS,
    COMPLETIONS,
    GENERATING,
    REPLYING,
    VALIDATED,
)

CHAT_RULES = "app.core.api.chat.rules.ChatRules"
EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"
MAX_TEMPERATURE = 2
OF_SCHEMA = ("body", "query")


def without_details(answer: Any, request: JsonObject) -> None:
    """Replaces details of a prompt without cached tokens by null."""
    usage = answer.get("usage")
    if isinstance(usage, dict) and not _cached_tokens(usage):
        usage["prompt_tokens_details"] = None


def events_without_details(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that leaves out details of a prompt without cached tokens."""

    def older(event: Event) -> Iterator[Event]:
        usage: Any = event[1].get("usage")
        if isinstance(usage, dict) and not _cached_tokens(usage):
            usage.pop("prompt_tokens_details", None)
        yield event

    return older


def _cached_tokens(usage: dict[str, Any]) -> int:
    details = usage.get("prompt_tokens_details")
    return details["cached_tokens"] if details else 0


def with_calls(answer: Any, request: JsonObject) -> None:
    """Adds the empty list of calls to messages."""
    for choice in answer.get("choices", ()):
        message = choice.get("message")
        if message is not None and "tool_calls" not in message:
            reasoning = {
                name: message.pop(name) for name in [*message] if name.startswith("reasoning")
            }
            message["tool_calls"] = []
            message.update(reasoning)


def events_with_calls(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that adds the empty list to texts that a tool parser has read."""
    is_parsed = bool(request.get("tools")) and request.get("tool_choice", "auto") == "auto"

    def older(event: Event) -> Iterator[Event]:
        for choice in event[1].get("choices", ()):
            delta = choice.get("delta")
            if is_parsed and delta and "role" not in delta:
                delta.setdefault("tool_calls", [])
        yield event

    return older


def accept_hot(request: Any) -> None:
    """Lowers a temperature that newer versions refuse."""
    temperature = request.get("temperature")
    if isinstance(temperature, int | float) and temperature > MAX_TEMPERATURE:
        request["temperature"] = MAX_TEMPERATURE


def repeat_temperature(answer: Any, request: JsonObject) -> None:
    """Repeats the temperature that was lowered."""
    temperature = request.get("temperature")
    if isinstance(temperature, int | float) and temperature > MAX_TEMPERATURE:
        answer["temperature"] = float(temperature)


def fail_without_param(error: ApiError, request: Any) -> ApiError | None:
    """Returns an error of the schema, which names no field."""
    if error.type == "Bad Request" and error.param and error.param.split(".")[0] in OF_SCHEMA:
        return ApiError(error.status, error.type, error.message)
    return None


def has_null_limit(request: JsonObject) -> bool:
    """Returns whether the limit of a completion is null."""
    return "prompt" in request and request.get("max_tokens", 1) is None


def fail_without_limit(answer: Any, request: JsonObject) -> None:
    """Fails, as the server does at the end of the completion.

    Raises:
        ApiError: 500.
    """
    raise internal("")


def ignore_strict(request: Any) -> None:
    """Removes a value of `strict` that newer versions refuse in the function of a tool."""
    for tool in objects_in(request.get("tools")):
        function = tool.get("function")
        if isinstance(function, dict) and not isinstance(function.get("strict"), bool | None):
            function.pop("strict", None)


CHANGES = (
    Change(
        area="Chat and completions",
        before="`include_reasoning: false` has no effect on streams.",
        after="It leaves the thoughts out of streams, too.",
        forms=(Rules(CHAT_RULES, {"streams_hidden_thoughts": True}),),
        routes=("/v1/chat/completions",),
        options=("reasoning-parser",),
    ),
    Change(
        area="Chat and completions",
        before="`strict` of a function may have any value.",
        after="`strict` is true or false.",
        forms=(Reading(paths=CHATS, read=ignore_strict),),
    ),
    Change(
        area="Chat and completions",
        before="The chunks of a chosen call have no `content`. The first one has the name and the "
        "first arguments; if the call is required, all have a `name`, and the first one empty "
        "arguments.",
        after="The chunks have `content: null`. The first one has the name alone.",
        forms=(Answer(paths=CHATS, events=CallStarts, only=has_chosen_call),),
        options=("enable-auto-tool-choice",),
    ),
    Change(
        area="Chat and completions",
        before="A completion with `max_tokens: null` fails with 500, without words.",
        after="Null means the default of 16 tokens.",
        forms=(Answer(paths=COMPLETIONS, whole=fail_without_limit, only=has_null_limit),),
    ),
    Change(
        area="Errors",
        before="`param` of a validation error is null.",
        after="`param` is the path of the field, such as `body.messages`.",
        forms=(Answer(paths=(*VALIDATED, "/pause"), failure=fail_without_param),),
    ),
    Change(
        area="Chat and completions",
        before="`prompt_tokens_details` is null, or absent in streams, if no token was cached.",
        after="`prompt_tokens_details` has `cached_tokens: 0`.",
        forms=(
            Answer(
                paths=(*GENERATING, "/inference/v1/generate"),
                whole=without_details,
                events=events_without_details,
            ),
        ),
        options=("enable-prompt-tokens-details",),
    ),
    Change(
        area="Chat and completions",
        before="A message without calls has `tool_calls: []`.",
        after="The message has no `tool_calls`.",
        forms=(Answer(paths=CHATS, whole=with_calls, events=events_with_calls),),
    ),
    Change(
        area="Chat and completions",
        before="`temperature` has no maximum.",
        after="`temperature` is at most 2.",
        forms=(
            Reading(paths=REPLYING, read=accept_hot),
            Answer(paths=("/v1/responses",), whole=repeat_temperature),
        ),
    ),
    Change(
        area="KV events",
        before="KV events are arrays.",
        after="KV events are maps.",
        forms=(Rules(EVENT_RULES, {"layout": "0.22"}),),
        options=("kv-events-config",),
    ),
)
