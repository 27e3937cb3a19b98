"""Changes of vLLM 0.27 to chats and completions."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request, internal, malformed
from app.core.versions.change import Answer, Change, Rules
from app.core.versions.paths import CHATS, GENERATING, INVOCATIONS, VALIDATED

KEY_RULES = "app.core.server.middleware.api_keys.KeyRules"
GRPC = "/vllm.grpc.engine."
OF_BODY = ("`tools` must not be ", "Batch chat completions do not support ", "In a batch, ")
"""How errors of the body as a whole begin."""
OF_FORMS = "You must use one kind of structured outputs "
NO_PROMPT = "Either prompt or prompt_embeds must be "
CONTINUED = "Cannot set both `continue_final_message` "
OF_VALIDATORS = (
    *OF_BODY,
    OF_FORMS,
    NO_PROMPT,
    CONTINUED,
    "`logprobs` must be ",
    "`prompt_logprobs` ",
    "`thinking_token_budget` ",
    "`top_logprobs` must be ",
    "Invalid response_format ",
    "Invalid structured_outputs ",
    "Invalid value for `tool_choice`",
    "Parameter 'cache_salt' ",
    "Stream options can only be ",
    "The tool specified in `tool_choice` ",
    "Tool choice '",
    "When response_format type ",
    "When using `tool_choice`",
    "You can only ",
    "background can only be used ",
    "echo with logprobs ",
    "logprob_token_ids ",
    "max_pattern_size, ",
    "prompt template is not supported",
    "tool_choice requires a function object",
    "when using `",
)
"""How errors of rules begin that older versions report as errors of the schema."""
TWO_FORMS = "You can only use one kind of structured outputs constraint but "
NOT_INTEGER = (
    "`logprobs` must be an integer",
    "`prompt_logprobs` must be an integer",
    "`top_logprobs` must be an integer",
)
OF_GRAMMARS = ("Grammar error: ", "Invalid grammar specification")
OF_SCHEMAS = tuple(path for path in VALIDATED if path != INVOCATIONS)


def fail_as_schema(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a rule that is checked with the schema."""
    if error.message.startswith(NOT_INTEGER):
        kind = type(request.get(error.param)).__name__
        return bad_request(f"'<' not supported between instances of '{kind}' and 'int'")
    if error.message.startswith(TWO_FORMS) and request.get("response_format"):
        return bad_request(error.message)
    if error.message.startswith(NO_PROMPT) and request.get("prompt") == []:
        return bad_request("You must pass at least one prompt")
    if error.type != "BadRequestError" or not error.message.startswith(OF_VALIDATORS):
        return None
    param = error.param or "body"
    message = error.message
    if message.startswith(OF_BODY):
        param = "body"
        message = message.partition(" (parameter=")[0]
    elif message.startswith(OF_FORMS):
        if not isinstance(request.get("structured_outputs"), dict):
            return None
        param = "body.structured_outputs"
    problem = {
        "type": "value_error",
        "loc": ("body",),
        "msg": f"Value error, {message}",
    }
    return malformed(f"1 validation error:\n  {problem}", param)


def fail_without_handler(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of an invocation that breaks a rule, and fits no route."""
    if fail_as_schema(error, request) is None:
        return None
    return bad_request(
        "Cannot find suitable handler for request. Expected one of: ['ChatCompletionRequest', "
        "'CompletionRequest']"
    )


def fail_at_prompt(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a chat, which names the missing prompt of a completion first."""
    if error.type != "Bad Request" or CONTINUED not in error.message:
        return None
    return malformed(error.message, "body.prompt")


def fail_at_call(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a required call with a schema that does not compile."""
    choice = request.get("tool_choice") if isinstance(request, dict) else None
    is_chosen = choice == "required" or isinstance(choice, dict)
    if is_chosen and error.message.startswith(OF_GRAMMARS):
        return internal("")
    return None


def fail_without_path(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a call in the conversation that does not fit its schema."""
    if error.type == "Bad Request" and "ToolCallParam" in error.message:
        return bad_request(error.message)
    return None


CHANGES = (
    Change(
        area="Errors",
        before="Routes below `/cohere` need no API key.",
        after="They need an API key, if the server has one.",
        forms=(Rules(KEY_RULES, {"guarded_prefixes": ("/v1", "/v2", "/inference", GRPC)}),),
        options=("api-key",),
    ),
    Change(
        area="Errors",
        before="A rule about several fields is a validation error of the type `value_error`, "
        "with the type `Bad Request`.",
        after="Such an error has only its message, with the type `BadRequestError`.",
        forms=(
            Answer(paths=OF_SCHEMAS, failure=fail_as_schema),
            Answer(paths=(INVOCATIONS,), failure=fail_without_handler),
            Answer(paths=("/tokenize",), failure=fail_at_prompt),
        ),
    ),
    Change(
        area="Chat and completions",
        before="A structured output that does not compile fails with 400 and the words of the "
        "compiler.",
        after="It fails with 500, without words, up to vLLM 0.28.",
        routes=(*GENERATING, "/v1/responses"),
    ),
    Change(
        area="Chat and completions",
        before="The schema of a chosen tool that does not compile fails with 500, without words.",
        after="It fails as all structured outputs do.",
        forms=(Answer(paths=CHATS, failure=fail_at_call, since="0.24.0"),),
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
