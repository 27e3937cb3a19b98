"""Changes of vLLM 0.18 to chats and completions."""

import re
from http import HTTPStatus
from typing import Any

from app.core.server.http.errors import ApiError, bad_request, malformed
from app.core.versions.boundary import TextError
from app.core.versions.change import Answer, Change, Reading, Rules
from app.core.versions.long_prompts import lengths_of, with_words
from app.core.versions.paths import (
    CHATS,
    GENERATING,
    INVOCATIONS,
    POOLING,
    REPLYING,
    VALIDATED,
)

ORIGIN_RULES = "app.core.versions.origins.OriginRules"
EFFORTS = ("low", "medium", "high")
OF_VALIDATORS = "'<' not supported between instances of "
LIMIT = re.compile(r" (cannot be greater than max_model_len=)(\d+)\. Please request fewer")
"""Part of the error of a limit of tokens that exceeds the context."""
OF_BODIES = "object has no attribute 'get'"
"""How errors begin and end that the functions of a schema raise."""
OF_ITEMS = "'Response"
"""How such errors begin that a handler has met."""
OF_CALLS = " is not implemented."
"""End of the error of an unknown method of workers."""


def fail_as_text(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error without JSON, unless a handler has met it."""
    message = error.message
    is_of_body = message.endswith(OF_BODIES) and not message.startswith(OF_ITEMS)
    is_raised = message.startswith(OF_VALIDATORS) or is_of_body
    if is_raised or message.endswith(OF_CALLS):
        return TextError(500, "InternalServerError", "Internal Server Error")
    return None


def fail_with_client(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a request for a missing feature."""
    if error.status != HTTPStatus.NOT_IMPLEMENTED:
        return None
    return bad_request(error.message)


def fail_with_passed(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a prompt that is too long, or of a limit that is."""
    lengths = lengths_of(error)
    if lengths is None:
        message, changes = LIMIT.subn(r"\1max_total_tokens=\2. Please request fewer", error.message)
        return ApiError(error.status, error.type, message, error.param) if changes else None
    words = bad_request(
        f"You passed {lengths.tokens} input tokens and requested {lengths.limit} output tokens. "
        f"However, the model's context length is only {lengths.context} tokens, resulting in a "
        f"maximum input length of {lengths.room} tokens. Please reduce the length of the input "
        "prompt.",
        "input_tokens",
        lengths.tokens,
    )
    return with_words(error, words)


def refuse_efforts(request: Any) -> None:
    """Refuses the efforts of thinking that came later.

    Raises:
        ApiError: 400.
    """
    effort = request.get("reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise malformed("Input should be 'low', 'medium' or 'high'", "body.reasoning_effort")


def include_usage(request: Any) -> None:
    """Asks for usage where the options of a stream leave it open."""
    options = request.get("stream_options")
    if request.get("stream") and isinstance(options, dict):
        options.setdefault("include_usage", True)


CHANGES = (
    Change(
        area="Chat and completions",
        before="The error of a prompt that is too long begins with `You passed`.",
        after="The error begins with `This model's maximum context length is`.",
        forms=(Answer(paths=(*REPLYING, *POOLING), failure=fail_with_passed),),
    ),
    Change(
        area="Chat and completions",
        before="`stream_options` without `include_usage` ask for usage.",
        after="They do not ask for it.",
        forms=(Reading(paths=(*GENERATING, INVOCATIONS), read=include_usage),),
    ),
    Change(
        area="Errors",
        before="An error that no rule foresees, and that comes from a validator or a worker, is "
        "the text `Internal Server Error` alone.",
        after="The error is JSON with the type `InternalServerError`.",
        forms=(Answer(paths=(*VALIDATED, "/collective_rpc"), failure=fail_as_text),),
    ),
    Change(
        area="Errors",
        before="A request for what vLLM does not have fails with 400.",
        after="It fails with 501.",
        forms=(Answer(paths=VALIDATED, failure=fail_with_client),),
    ),
    Change(
        area="Errors",
        before="Errors of rules have headers for browsers of other origins.",
        after="They do not have these headers, up to vLLM 0.25.",
        forms=(Rules(ORIGIN_RULES, {"opens_rules": True, "opens_named_rules": True}),),
        options=("allowed-origins",),
    ),
    Change(
        area="Chat and completions",
        before="`reasoning_effort` is `low`, `medium` or `high`.",
        after="It may be `none`, which leaves the thoughts out.",
        forms=(Reading(paths=(*CHATS, INVOCATIONS), read=refuse_efforts),),
    ),
)
