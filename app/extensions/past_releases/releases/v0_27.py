"""Changes of vLLM 0.27 to chats and completions."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request, malformed
from app.core.versions.change import Answer, Change
from app.extensions.past_releases.paths import GENERATING, VALIDATED

OF_VALIDATORS = (
    "`logprobs` must be ",
    "`prompt_logprobs` ",
    "`thinking_token_budget` ",
    "`tools` must not be ",
    "`top_logprobs` must be ",
    "Cannot set both `continue_final_message` ",
    "Either prompt or prompt_embeds must be ",
    "Invalid response_format ",
    "Invalid structured_outputs ",
    "Invalid value for `tool_choice`",
    "Parameter 'cache_salt' ",
    "Stream options can only be ",
    "The tool specified in `tool_choice` ",
    "When response_format type ",
    "When using `tool_choice`",
    "You can only ",
    "echo with logprobs ",
    "logprob_token_ids ",
    "max_pattern_size, ",
    "prompt template is not supported",
    "when using `",
)
"""How errors of rules begin that older versions report as errors of the schema."""
NOT_INTEGER = ("`logprobs` must be an integer", "`prompt_logprobs` must be an integer")
OF_TAGS = "Invalid structural tag specification"


def fail_as_schema(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a rule that is checked with the schema."""
    if error.message.startswith(NOT_INTEGER):
        kind = type(request.get(error.param)).__name__
        return bad_request(f"'<' not supported between instances of '{kind}' and 'int'")
    if error.message.startswith(OF_TAGS):
        return bad_request(error.message.partition(" (parameter=")[0])
    if error.type != "BadRequestError" or not error.message.startswith(OF_VALIDATORS):
        return None
    problem = {
        "type": "value_error",
        "loc": ("body",),
        "msg": f"Value error, {error.message}",
    }
    return malformed(f"1 validation error:\n  {problem}", error.param or "body")


def fail_without_path(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a call in the conversation that does not fit its schema."""
    if error.type == "Bad Request" and "ToolCallParam" in error.message:
        return bad_request(error.message)
    return None


CHANGES = (
    Change(
        area="Errors",
        before="A rule about several fields is a validation error of the type `value_error`, "
        "with the type `Bad Request`.",
        after="Such an error has only its message, with the type `BadRequestError`.",
        forms=(Answer(paths=VALIDATED, failure=fail_as_schema),),
    ),
    Change(
        area="Chat and completions",
        before="A structured output that does not compile fails with 400 and the words of the "
        "compiler.",
        after="It fails with 500, without words, up to vLLM 0.28.",
        routes=(*GENERATING, "/v1/responses"),
    ),
    Change(
        area="Chat and responses",
        before="A request may have both tools and structured outputs.",
        after="Such a request fails with 500, up to vLLM 0.30.",
        routes=("/v1/chat/completions", "/v1/responses"),
        options=("enable-auto-tool-choice",),
    ),
    Change(
        area="Chat and completions",
        before="A call in the conversation that does not fit its schema fails with the type "
        "`BadRequestError`.",
        after="The error has the type `Bad Request` and names the field.",
        forms=(Answer(paths=GENERATING, failure=fail_without_path),),
    ),
)
