"""Changes of vLLM 0.16 to chats, and to routes of other tasks."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request
from app.core.versions.change import Absent, Answer, Change, Rules
from app.extensions.past_releases.long_prompts import (
    LongPromptError,
    exceed,
    rest_exceeded,
    with_words,
)
from app.extensions.past_releases.paths import CHATS, COMPLETIONS

REQUESTS_RULES = "app.core.protocol.validation.RequestRules"
TASK_RULES = "app.extensions.past_releases.other_tasks.TaskRules"
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
    if not isinstance(error, LongPromptError):
        return None
    context = error.context
    tokens = error.tokens
    if tokens >= context:
        words = bad_request(
            f"This model's maximum context length is {context} tokens. However, your request has "
            f"{tokens} input tokens. Please reduce the length of the input messages.",
            "input_tokens",
            tokens,
        )
    else:
        words = bad_request(
            f"'max_tokens' or 'max_completion_tokens' is too large: {error.limit}. This model's "
            f"maximum context length is {context} tokens and your request has {tokens} input "
            f"tokens ({error.limit} > {context} - {tokens}).",
            "max_tokens",
            error.limit,
        )
    return with_words(error, words)


def fail_with_rest(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of the prompt of a completion that is too long."""
    if not isinstance(error, LongPromptError):
        return None
    if error.limit > error.context:
        words = bad_request(
            f"'max_tokens' ({error.limit}) cannot be greater than the model's maximum context "
            f"length ({error.context}).",
            "max_tokens",
            error.limit,
        )
    else:
        words = rest_exceeded(error)
    return with_words(error, words)


CHANGES = (
    Change(
        area="Chat and completions",
        before="The error of a prompt that is too long counts all tokens of the prompt, and says "
        "`your request has`.",
        after="The error counts no more tokens than show that they are too many.",
        forms=(
            Rules(REQUESTS_RULES, {"overflow": exceed, "counts_prompts": True}),
            Answer(paths=CONVERSING, failure=fail_with_request),
            Answer(paths=COMPLETIONS, failure=fail_with_rest),
        ),
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
