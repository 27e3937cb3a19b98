"""Changes of vLLM 0.29 to chats and completions, and to a tier of CPU blocks."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request, internal
from app.core.versions.change import Answer, Change, Reading, Rules
from app.core.versions.older_requests import check_json, objects_in
from app.core.versions.paths import COMPLETIONS, GENERATING, INVOCATIONS, OPENAI
from app.core.versions.releases.v0_30 import MAX_OLDER_SALT_CHARACTERS, hashed_salt

SCHEDULER = "app.core.engine.batch.SchedulerRules"
REQUESTS_RULES = "app.core.protocol.validation.RequestRules"
CHATS = ("/v1/chat/completions",)
BLANK_WORD = "each entry in bad_words must have"


def refuse_all_logprobs(request: Any) -> None:
    """Refuses the log probabilities of the whole vocabulary.

    Raises:
        ApiError: 400.
    """
    count = request.get("logprobs")
    if "prompt" in request and isinstance(count, int) and count < 0:
        raise bad_request("`logprobs` must be a positive value.", "logprobs", count)


def shorten_salt(request: Any) -> None:
    """Replaces a salt that newer versions refuse, because it is too long."""
    salt = request.get("cache_salt")
    if isinstance(salt, str) and len(salt) > MAX_OLDER_SALT_CHARACTERS:
        request["cache_salt"] = hashed_salt(salt)


def check_arguments(request: Any) -> None:
    """Refuses calls in the conversation whose arguments are not JSON.

    Raises:
        ApiError: 400 with the words of Python's parser.
    """
    for message in objects_in(request.get("messages")):
        for call in objects_in(message.get("tool_calls")):
            function = call.get("function")
            if isinstance(function, dict):
                check_json(function.get("arguments"))


def fail_before_minimum(request: Any) -> None:
    """Fails where a form ends before the minimum of tokens.

    Raises:
        ApiError: 500.
    """
    form = request.get("structured_outputs")
    choice = form.get("choice") if isinstance(form, dict) else None
    minimum = request.get("min_tokens")
    if isinstance(minimum, int) and isinstance(choice, list):
        longest = max((len(text) for text in choice if isinstance(text, str)), default=0)
        if 0 < longest < minimum:
            raise internal("Internal server error")


def fail_at_blanks(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a bad word of white space, which has no first token."""
    if not error.message.startswith(BLANK_WORD):
        return None
    return internal("list index out of range")


CHANGES = (
    Change(
        area="Chat and completions",
        before="White space in `bad_words` fails with 500.",
        after="White space in `bad_words` is an error of the field.",
        forms=(Answer(paths=GENERATING, failure=fail_at_blanks),),
    ),
    Change(
        area="Chat and completions",
        before="A completion with `logprobs: -1` is an error.",
        after="`logprobs: -1` asks for the whole vocabulary.",
        forms=(Reading(paths=(*COMPLETIONS, INVOCATIONS), read=refuse_all_logprobs),),
    ),
    Change(
        area="Chat, completions and responses",
        before="A `cache_salt` may have any length.",
        after="A `cache_salt` with more than 1,024 characters is a validation error.",
        forms=(Reading(paths=OPENAI, read=shorten_salt),),
    ),
    Change(
        area="Chat and completions",
        before="Calls in the conversation whose arguments are not JSON are an error.",
        after="Such arguments are rendered as text.",
        forms=(Reading(paths=CHATS, read=check_arguments),),
    ),
    Change(
        area="Chat and completions",
        before="`stop_token_ids` may contain IDs that are not in the vocabulary.",
        after="Such IDs are an error.",
        forms=(Rules(REQUESTS_RULES, {"checks_stop_ids": False}),),
        routes=("/v1/chat/completions", "/v1/completions"),
    ),
    Change(
        area="Chat and completions",
        before="A structured output that ends before `min_tokens` fails with 500.",
        after="The reply ends.",
        forms=(Reading(paths=CHATS, read=fail_before_minimum),),
    ),
    Change(
        area="Scheduler",
        before="Each lookup of a block in a tier of CPU blocks counts for the store threshold.",
        after="The prompts count in which the block would be stored.",
        forms=(Rules(SCHEDULER, {"chunk_uses": "lookups"}),),
        options=("kv-transfer-config", "kv-offloading-size"),
    ),
    Change(
        area="Scheduler",
        before="An image that a prompt contains twice, and that the encoder cache had before, can "
        "leave the cache after the first place.",
        after="The image stays in the encoder cache until its last place.",
        forms=(Rules(SCHEDULER, {"keeps_repeated_items": False}),),
    ),
)
