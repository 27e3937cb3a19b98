"""Changes of vLLM 0.11 to chats and completions."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError, bad_request, internal, malformed
from app.core.versions.change import Answer, Change, Event, Reading, Rules
from app.core.versions.older_requests import fields_of
from app.core.versions.paths import CHATS, COMPLETIONS, GENERATING, INVOCATIONS, POOLING

KEY_RULES = "app.core.server.middleware.api_keys.KeyRules"
CHAT_RULES = "app.core.api.chat.rules.ChatRules"
LOGPROBS = ("prompt_logprobs", "top_logprobs")
INTERNAL = 500
ENGINE_ENDED = "EngineCore encountered an issue. See stack trace (above) for the root cause."
OF_CONTEXT = "This model's maximum context "


def refuse_all_logprobs(request: Any) -> None:
    """Refuses the log probabilities of the whole vocabulary.

    Raises:
        ApiError: 400.
    """
    for name in LOGPROBS:
        if request.get(name) == -1:
            raise malformed(f"Value error, `{name}` must be a positive value.", "body")


def fail_at_negative_ids(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a negative token, unless the request has other errors, too."""
    is_negative = "'greater_than_equal'" in error.message
    if is_negative and fields_of(error) == {"prompt"}:
        return internal("")
    return None


def fail_with_this(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a completion that is too long."""
    if not error.message.startswith(OF_CONTEXT):
        return None
    return bad_request(error.message.replace("This model's", "This", 1))


def ignore_structured_outputs(request: Any) -> None:
    """Removes the field that older versions do not know."""
    request.pop("structured_outputs", None)


def ignore_empty_tag(request: Any) -> None:
    """Removes a structural tag without structures, which constrains nothing."""
    tag = request.get("response_format")
    if isinstance(tag, dict) and tag.get("structures") == []:
        del request["response_format"]


def end_at_empty_trigger(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of an engine that has ended at a structural tag with an empty trigger."""
    if error.status != INTERNAL or not isinstance(request, dict):
        return None
    tag = request.get("response_format")
    triggers = tag.get("triggers") if isinstance(tag, dict) else None
    if isinstance(triggers, list) and "" in triggers:
        return internal(ENGINE_ENDED)
    return None


def ask_for_ids(request: Any) -> None:
    """Asks for the tokens of the prompt in a stream. An echo already has them.

    With `return_token_ids`, an echo would lose the text of the prompt.
    """
    if request.get("stream") and not request.get("echo"):
        request["return_token_ids"] = True


def with_prompt_ids(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that removes the tokens of the reply, unless they were asked for."""
    has_reply_ids = bool(request.get("return_token_ids"))

    def older(event: Event) -> Iterator[Event]:
        for choice in () if has_reply_ids else event[1].get("choices", ()):
            choice["token_ids"] = None
        yield event

    return older


CHANGES = (
    Change(
        area="Errors",
        before="The key follows `Bearer `, with these letters.",
        after="The word `Bearer` may have small letters.",
        forms=(Rules(KEY_RULES, {"reads_any_case": False}),),
        options=("api-key",),
    ),
    Change(
        area="Chat and completions",
        before="Requests may bring a chat template.",
        after="`--trust-request-chat-template` allows the chat templates of requests.",
        forms=(Rules(CHAT_RULES, {"trusts_templates": True}),),
        routes=("/v1/chat/completions", "/tokenize"),
    ),
    Change(
        area="Chat and completions",
        before="`top_logprobs` and `prompt_logprobs` must be positive.",
        after="-1 asks for the whole vocabulary.",
        forms=(Reading(paths=(*GENERATING, INVOCATIONS), read=refuse_all_logprobs),),
    ),
    Change(
        area="Chat and completions",
        before="A negative token in a prompt fails with 500.",
        after="It is an error of the prompt. Up to vLLM 0.15, the engine ends.",
        forms=(Answer(paths=COMPLETIONS, failure=fail_at_negative_ids),),
    ),
    Change(
        area="Errors",
        before="The error of a completion that is too long begins with `This maximum context`.",
        after="It begins with `This model's maximum context`.",
        forms=(Answer(paths=(*COMPLETIONS, *POOLING), failure=fail_with_this),),
    ),
    Change(
        area="Chat and completions",
        before="The first chunk of a completion always has `prompt_token_ids`.",
        after="Only `return_token_ids` asks for them.",
        forms=(
            Reading(paths=COMPLETIONS, read=ask_for_ids),
            Answer(paths=COMPLETIONS, events=with_prompt_ids),
        ),
    ),
    Change(
        area="Chat and completions",
        before="`structured_outputs` is ignored.",
        after="`structured_outputs` constrains the reply, as the `guided_` fields do.",
        forms=(Reading(paths=(*GENERATING, INVOCATIONS), read=ignore_structured_outputs),),
    ),
    Change(
        area="Chat and completions",
        before="A structural tag without structures is ignored. An empty trigger fails with 500, "
        "because the engine ends.",
        after="Both are errors of the structural tag.",
        forms=(
            Reading(paths=CHATS, read=ignore_empty_tag),
            Answer(paths=CHATS, failure=end_at_empty_trigger),
        ),
    ),
)
