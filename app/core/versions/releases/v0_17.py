"""Changes of vLLM 0.17 to chats, completions, errors and KV events."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request, internal
from app.core.versions.boundary import TextError
from app.core.versions.change import Answer, Change, Rules
from app.core.versions.paths import GENERATING, OPENAI

CHAT_RULES = "app.core.api.chat.rules.ChatRules"
EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"
NO_SCHEMA = """1 validation error:
  {'type': 'value_error', 'loc': ('body',), 'msg': "Value error, When response_format type is \
'json_schema', the 'json_schema' field must be provided."""
OF_TOKENS = "allowed_token_ids "


def fail_with_success(error: ApiError, request: Any) -> ApiError | None:
    """Returns an error that no rule foresees, which has the status of a success."""
    if error.type != "InternalServerError" or isinstance(error, TextError):
        return None
    older = ApiError(200, error.type, error.message)
    older.code = error.code
    return older


def fail_without_tokens(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of `allowed_token_ids`, which names no field."""
    if not error.message.startswith(OF_TOKENS):
        return None
    return bad_request(error.message.partition(" (parameter=")[0])


def fail_without_schema(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a format that requires a schema and has none."""
    if error.message.startswith(NO_SCHEMA):
        return internal("")
    return None


CHANGES = (
    Change(
        area="Chat and completions",
        before="The parser `qwen3` finds thoughts only between `<think>` and `</think>`. "
        "Others are part of the text, except in streams.",
        after="Thoughts end with `</think>`, or with the reply.",
        forms=(Rules(CHAT_RULES, {"strict_parsers": frozenset(("qwen3",))}),),
        routes=("/v1/chat/completions", "/v1/responses"),
        options=("reasoning-parser",),
    ),
    Change(
        area="Chat and completions",
        before="A `response_format` of the type `json_schema` without `json_schema` fails with an "
        "error that no rule foresees.",
        after="It is an error of the request.",
        forms=(Answer(paths=GENERATING, failure=fail_without_schema),),
    ),
    Change(
        area="Errors",
        before="An error that no rule foresees has the status 200 and the `code` 500, since vLLM "
        "0.15.",
        after="It has the status 500.",
        forms=(Answer(paths=OPENAI, failure=fail_with_success, since="0.15.0"),),
    ),
    Change(
        area="Errors",
        before="An error of `allowed_token_ids` names no field.",
        after="The error names `allowed_token_ids`.",
        forms=(Answer(paths=GENERATING, failure=fail_without_tokens),),
    ),
    Change(
        area="KV events",
        before="Stored blocks of KV events have no `extra_keys`.",
        after="Stored blocks have `extra_keys`.",
        forms=(Rules(EVENT_RULES, {"layout": "0.14"}),),
        options=("kv-events-config",),
    ),
)
