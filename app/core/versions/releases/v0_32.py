"""Changes of vLLM 0.32 to chats and completions, and in the scheduler."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change, Event, Rules
from app.core.versions.long_prompts import exceed, exceed_at_least, limit_of
from app.core.versions.paths import POOLING, REPLYING

ORIGIN_RULES = "app.core.versions.origins.OriginRules"
SCHEDULER = "app.core.engine.batch.SchedulerRules"
REQUESTS_RULES = "app.core.protocol.validation.RequestRules"
CHATS = ("/v1/chat/completions",)
TOO_LONG = re.compile(
    r"This model's maximum context length is (?P<context>\d+) tokens\. However, your prompt "
    r"contains (?P<qualifier>at least )?(?P<tokens>\d+) input tokens"
)


def has_stop(request: JsonObject) -> bool:
    """Returns whether strings stop the reply."""
    return bool(request.get("stop"))


def with_joined_end(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that moves a stop string's end into the chunk before it."""
    held: dict[int, Event] = {}

    def older(event: Event) -> Iterator[Event]:
        choices: Any = event[1].get("choices") or ()
        if len(choices) != 1:
            yield from held.values()
            held.clear()
            yield event
            return
        choice = choices[0]
        index = choice["index"]
        previous = held.pop(index, None)
        is_end = isinstance(choice.get("stop_reason"), str)
        if previous is not None and is_end and not choice["delta"]:
            choice["delta"] = previous[1]["choices"][0]["delta"]
        elif previous is not None:
            yield previous
        if choice["finish_reason"] is None and choice["delta"].get("content"):
            held[index] = event
        else:
            yield event

    return older


def fail_with_limit(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a prompt that is too long, which counts the limit of the reply."""
    match = TOO_LONG.match(error.message)
    if match is None or not isinstance(request, dict):
        return None
    context = int(match["context"])
    limit = limit_of(request)
    tokens = int(match["tokens"])
    if match["qualifier"] or tokens == context - limit + 1:
        return exceed_at_least(context, limit, tokens)
    return exceed(context, limit, tokens)


CHANGES = (
    Change(
        area="Chat and completions",
        before="The error of a prompt that is too long counts the tokens of the limit, too.",
        after="The error counts the tokens of the prompt alone.",
        forms=(Answer(paths=(*REPLYING, *POOLING), failure=fail_with_limit),),
    ),
    Change(
        area="Chat and completions",
        before="A request whose prompt and token limit together exceed the context is an error. "
        "`truncate_prompt_tokens: -1` leaves room for all tokens of the limit.",
        after="The reply is shorter than the limit. The truncation leaves room for one token.",
        forms=(Rules(REQUESTS_RULES, {"overflow": exceed_at_least}),),
        routes=("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    ),
    Change(
        area="Chat and completions",
        before="The chunk of the last text before a stop string has the finish reason.",
        after="The finish reason has a chunk of its own.",
        forms=(Answer(paths=CHATS, events=with_joined_end, only=has_stop),),
    ),
    Change(
        area="Errors",
        before="An error that no rule foresees has no headers for browsers of other origins.",
        after="The error has these headers.",
        forms=(Rules(ORIGIN_RULES, {"opens_faults": False}),),
        options=("allowed-origins",),
    ),
    Change(
        area="Scheduler",
        before="The start of a transfer leaves free blocks for the first drafts of each other "
        "request, rounded up to whole blocks.",
        after="These drafts count with the tokens of the request.",
        forms=(Rules(SCHEDULER, {"reserves_drafts_in_tokens": False}),),
        options=(
            "speculative-config",
            "kv-transfer-config",
        ),
    ),
    Change(
        area="Scheduler",
        before="During a pause, no waiting request starts.",
        after="During a pause, requests start whose transfer has arrived.",
        forms=(Rules(SCHEDULER, {"resumes_transfers_in_pause": False}),),
        options=("kv-transfer-config",),
    ),
    Change(
        area="Scheduler",
        before="`disable-chunked-mm-input` does not hold for images in the encoder cache.",
        after="The option holds for all images.",
        forms=(Rules(SCHEDULER, {"avoids_known_splits": False}),),
        options=("disable-chunked-mm-input",),
    ),
    Change(
        area="Scheduler",
        before="An image that a prompt contains twice can leave the encoder cache after the first "
        "place.",
        after="The image stays in the encoder cache until its last place.",
        forms=(Rules(SCHEDULER, {"notes_repeated_items": False}),),
    ),
)
