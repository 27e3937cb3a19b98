"""Changes of vLLM 0.28 to chats, completions and responses, and in the scheduler."""

from http import HTTPStatus
from typing import Any

from app.core.server.http.errors import ApiError, bad_request, internal
from app.core.versions.change import Answer, Change, Reading, Rules
from app.core.versions.paths import INVOCATIONS, OPENAI

SCHEDULER = "app.core.engine.batch.SchedulerRules"
OF_GRAMMARS = (
    "Grammar error: ",
    "Invalid JSON grammar",
    "Invalid grammar specification",
    "No reply can have the form",
)
"""How errors about structured outputs that do not compile begin."""
MAX_STOPS = 4


def fail_without_words(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a structured output that does not compile."""
    if error.status == HTTPStatus.BAD_REQUEST and error.message.startswith(OF_GRAMMARS):
        return internal("")
    return None


def fail_at_attribute(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a body that is not a JSON object."""
    if isinstance(request, str | bool | int | float | list):
        return internal(f"'{type(request).__name__}' object has no attribute 'get'")
    return None


def require_salt(request: Any) -> None:
    """Refuses a salt that is empty or not a text.

    Raises:
        ApiError: 400.
    """
    salt = request.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        problem = "Parameter 'cache_salt' must be a non-empty string if provided."
        raise bad_request(problem, "cache_salt")


def accept_stops(request: Any) -> None:
    """Keeps the stop strings that newer versions accept."""
    stops = request.get("stop")
    if isinstance(stops, list):
        del stops[MAX_STOPS:]


CHANGES = (
    Change(
        area="Chat, completions and responses",
        before="A structured output that does not compile fails with 500, without words.",
        after="It fails with 400, and the words of the compiler.",
        forms=(Answer(paths=OPENAI, failure=fail_without_words, since="0.27.0"),),
    ),
    Change(
        area="Chat, completions and responses",
        before="A body that is a JSON string, number, boolean or list fails with 500.",
        after="It fails with 400.",
        forms=(Answer(paths=OPENAI, failure=fail_at_attribute),),
    ),
    Change(
        area="Chat, completions and responses",
        before="A `cache_salt` that is empty or not a text is an error of the type "
        "`BadRequestError`.",
        after="The error has the type `Bad Request` up to vLLM 0.29.",
        forms=(Reading(paths=OPENAI, read=require_salt),),
    ),
    Change(
        area="Chat, completions and responses",
        before="A request may have any number of stop strings.",
        after="A request has at most four stop strings.",
        forms=(Reading(paths=(*OPENAI, INVOCATIONS), read=accept_stops),),
    ),
    Change(
        area="Chat and completions",
        before="`usage` has no `completion_tokens_details`.",
        after="`usage` has `completion_tokens_details`, null without thoughts.",
        routes=OPENAI,
    ),
    Change(
        area="Scheduler",
        before="With a draft model, each step has fewer tokens: the slots for the drafts of "
        "`--max-num-seqs` requests are taken off in advance.",
        after="The slots count for each request in the step.",
        forms=(Rules(SCHEDULER, {"counts_draft_slots": False}),),
        options=("speculative-config",),
    ),
    Change(
        area="Scheduler",
        before="With priority scheduling, a step can miss a running request if it preempts an "
        "earlier one that has no tokens in the step.",
        after="The step visits all running requests.",
        forms=(Rules(SCHEDULER, {"visits_all_after_victims": False}),),
        options=("scheduling-policy",),
    ),
)
