"""Changes of vLLM 0.30 to chats and completions, and in the scheduler."""

import hashlib
from typing import Any

from app.core.server.http.errors import internal, invalid_field
from app.core.versions.change import Change, Reading, Rules
from app.shared.older_requests import check_json, objects_in

SCHEDULER = "app.core.engine.batch.SchedulerRules"
REQUESTS_RULES = "app.core.protocol.validation.RequestRules"
CHATS = ("/v1/chat/completions",)
SALTED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
MAX_SALT_CHARACTERS = 128
NO_SALT = frozenset("@/\\\0")
"""Characters that newer versions refuse in a salt."""


def check_salt(request: Any) -> None:
    """Refuses a salt that is not a text, or empty, and replaces one that newer versions refuse.

    Raises:
        ApiError: 400.
    """
    salt = request.get("cache_salt")
    if isinstance(salt, str) and (len(salt) > MAX_SALT_CHARACTERS or not NO_SALT.isdisjoint(salt)):
        request["cache_salt"] = hashlib.sha256(salt.encode("utf-8", "surrogatepass")).hexdigest()
    if salt is not None and not isinstance(salt, str):
        problem = "Input should be a valid string"
        raise invalid_field("string_type", "body.cache_salt", problem, salt)
    if salt == "":
        problem = "String should have at least 1 character"
        raise invalid_field("string_too_short", "body.cache_salt", problem, salt, {"min_length": 1})


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


CHANGES = (
    Change(
        area="Chat, completions and responses",
        before="A `cache_salt` may have any length and any characters. An empty one and one of "
        "another type are validation errors.",
        after="A `cache_salt` has at most 128 characters, without `@`, `/`, `\\` and NUL.",
        forms=(Reading(paths=SALTED, read=check_salt),),
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
        before="With a connector and asynchronous steps, a request is preempted although a step "
        "under way computes its blocks, which are not free before that step is over.",
        after="Such a request is not preempted. The request that needs blocks waits for a step.",
        forms=(Rules(SCHEDULER, {"keeps_deferred_victims": False}),),
        options=("kv-transfer-config",),
    ),
    Change(
        area="Scheduler",
        before="With drafts, a request that resumes with one token is computed alone if no other "
        "request is in the step.",
        after="The request is padded with drafts, as beside others.",
        forms=(Rules(SCHEDULER, {"pads_resumed_alone": False}),),
        options=("speculative-config",),
    ),
)
