"""Changes of vLLM 0.16 to chats, and to routes of other tasks."""

import re
from typing import Any

from app.core.server.http.errors import ApiError, bad_request, invalid_field
from app.core.versions.change import Absent, Answer, Change, Reading, Rules
from app.core.versions.long_prompts import exceed, lengths_of, limit_of, with_words
from app.core.versions.paths import CHATS, COMPLETIONS, GENERATING, INVOCATIONS, POOLING

REQUESTS_RULES = "app.core.protocol.validation.RequestRules"
TASK_RULES = "app.core.assembly.other_tasks.TaskRules"
TRUNCATION = re.compile(
    r"truncate_prompt_tokens=(?P<tokens>\d+) cannot be greater than "
    r"max_model_len = (?P<context>\d+)"
)
WHOLE_CONTEXT = 2**31 - 1
"""A truncation that is longer than any context."""
NO_MESSAGES = "messages must be a list"
CONVERSING = (*CHATS, "/v1/responses", "/v1/messages")


def copy_reasoning(answer: Any) -> None:
    """Repeats the thoughts under their former name, which is null without thoughts."""
    for choice in answer.get("choices", ()):
        for name in ("message", "delta"):
            part = choice.get(name)
            if part is not None:
                part["reasoning_content"] = part.get("reasoning")


def fail_with_request(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a conversation that is too long."""
    lengths = lengths_of(error)
    if lengths is None:
        return None
    context = lengths.context
    tokens = lengths.tokens
    if tokens >= context:
        words = bad_request(
            f"This model's maximum context length is {context} tokens. However, your request has "
            f"{tokens} input tokens. Please reduce the length of the input messages.",
            "input_tokens",
            tokens,
        )
    else:
        words = bad_request(
            f"'max_tokens' or 'max_completion_tokens' is too large: {lengths.limit}. This model's "
            f"maximum context length is {context} tokens and your request has {tokens} input "
            f"tokens ({lengths.limit} > {context} - {tokens}).",
            "max_tokens",
            lengths.limit,
        )
    return with_words(error, words)


def fail_with_limit(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a completion whose limit exceeds the context."""
    lengths = lengths_of(error)
    if lengths is None or lengths.room >= 0:
        return None
    return bad_request(
        f"'max_tokens' ({lengths.limit}) cannot be greater than the model's maximum context "
        f"length ({lengths.context}).",
        "max_tokens",
        lengths.limit,
    )


def fail_with_room(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of the prompt of a completion that is too long."""
    lengths = lengths_of(error)
    if lengths is None:
        return None
    return bad_request(
        f"This model's maximum context length is {lengths.room} tokens. However, your request has "
        f"{lengths.tokens} input tokens. Please reduce the length of the input messages.",
        "input_tokens",
        lengths.tokens,
    )


def exceed_in_truncation(request: Any) -> None:
    """Asks for a truncation that no context has, in place of the whole context.

    It leaves no room for the limit of tokens.
    """
    has_limit = "prompt" in request and request.get("max_tokens", 1)
    if has_limit and request.get("truncate_prompt_tokens") == -1:
        request["truncate_prompt_tokens"] = WHOLE_CONTEXT


def fail_with_truncation(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a truncation that is longer than the context, or than its rest."""
    match = TRUNCATION.match(error.message)
    if match is None:
        return None
    context = int(match["context"])
    tokens = int(match["tokens"])
    if "prompt" not in request:
        return bad_request(
            f"truncate_prompt_tokens value ({tokens}) is greater than max_model_len ({context}). "
            "Please, select a smaller truncation size."
        )
    if tokens == WHOLE_CONTEXT:
        tokens = context
    return bad_request(
        f"truncate_prompt_tokens={tokens} cannot be greater than "
        f"max_length={context - limit_of(request)}. Please select a smaller truncation size."
    )


def fail_at_messages(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of messages that are not a list, which do not fit the schema."""
    if error.message != NO_MESSAGES:
        return None
    return invalid_field("list_type", "body.messages", "Input should be a valid list")


def ignore_zero(request: Any) -> None:
    """Removes a limit of 0 tokens, so that the other limit holds."""
    if request.get("max_completion_tokens") == 0:
        del request["max_completion_tokens"]


CHANGES = (
    Change(
        area="Chat and completions",
        before="`max_completion_tokens: 0` is ignored.",
        after="`max_completion_tokens: 0` is an error.",
        forms=(Reading(paths=(*CHATS, INVOCATIONS), read=ignore_zero),),
    ),
    Change(
        area="Chat and completions",
        before="The error of a prompt that is too long counts all tokens of the prompt, and says "
        "`your request has`.",
        after="The error counts no more tokens than show that they are too many.",
        forms=(
            Rules(REQUESTS_RULES, {"overflow": exceed, "counts_prompts": True}),
            Answer(paths=(*CONVERSING, *POOLING), failure=fail_with_request),
            Answer(paths=COMPLETIONS, failure=fail_with_limit, since="0.14.0"),
            Answer(paths=COMPLETIONS, failure=fail_with_room),
        ),
    ),
    Change(
        area="Chat and completions",
        before="A completion with `truncate_prompt_tokens: -1` is an error, because the limit of "
        "tokens leaves less than the context. The error of a truncation that is too long names no "
        "field.",
        after="The truncation leaves room for the limit. The error names `truncate_prompt_tokens`.",
        forms=(
            Reading(paths=(*COMPLETIONS, INVOCATIONS), read=exceed_in_truncation),
            Answer(paths=GENERATING, failure=fail_with_truncation),
        ),
    ),
    Change(
        area="Errors",
        before="`messages: null` does not fit the schema.",
        after="`messages: null` fails with the type `BadRequestError`.",
        forms=(Answer(paths=CHATS, failure=fail_at_messages),),
    ),
    Change(
        area="Chat and completions",
        before="Messages and deltas repeat `reasoning` as `reasoning_content`, which is null in "
        "other deltas.",
        after="`reasoning_content` is gone.",
        forms=(
            Absent(kept=("ChatMessage.reasoning", "DeltaMessage.reasoning")),
            Answer(paths=CHATS, edit=copy_reasoning),
        ),
        options=("reasoning-parser",),
    ),
    Change(
        area="Pooling",
        before="A route of another task than the model's answers 200 with an error.",
        after="The server does not have the route.",
        forms=(Rules(TASK_RULES, {"has_other_tasks": True}),),
        routes=("/v1/embeddings", "/pooling", "/classify", "/score", "/rerank"),
    ),
)
