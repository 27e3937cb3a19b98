"""Changes of vLLM 0.30 to salts, and in the scheduler."""

import hashlib
from collections.abc import Iterator
from typing import Any

from app.core.server.http.errors import bad_request, invalid_field
from app.core.versions.change import Change, Reading, Rules
from app.core.versions.paths import OPENAI

SCHEDULER = "app.core.engine.batch.SchedulerRules"
MAX_SALT_CHARACTERS = 128
MAX_OLDER_SALT_CHARACTERS = 1024
NO_SALT = frozenset("@/\\\0")
"""Characters that newer versions refuse in a salt."""


def hashed_salt(salt: str) -> str:
    """Returns a salt that all versions accept, in the place of one that newer versions refuse."""
    return hashlib.sha256(salt.encode("utf-8", "surrogatepass")).hexdigest()


def check_salt(request: Any) -> None:
    """Refuses an empty salt and one of another type; replaces one that newer versions refuse.

    Raises:
        ApiError: 400.
    """
    salt = request.get("cache_salt")
    if isinstance(salt, str) and len(salt) > MAX_OLDER_SALT_CHARACTERS:
        limit = MAX_OLDER_SALT_CHARACTERS
        problem = f"String should have at most {limit} characters"
        raise invalid_field(
            "string_too_long", "body.cache_salt", problem, salt, {"max_length": limit}
        )
    if isinstance(salt, str) and (len(salt) > MAX_SALT_CHARACTERS or not NO_SALT.isdisjoint(salt)):
        request["cache_salt"] = hashed_salt(salt)
    if salt is not None and not isinstance(salt, str):
        problem = "Input should be a valid string"
        raise invalid_field("string_type", "body.cache_salt", problem, salt)
    if salt == "":
        problem = "String should have at least 1 character"
        raise invalid_field("string_too_short", "body.cache_salt", problem, salt, {"min_length": 1})


def refuse_names(request: Any) -> None:
    """Refuses schemas of the reply that constrain the names of properties.

    Raises:
        ApiError: 400 with the words of the compiler.
    """
    if any(map(_constrains_names, schemas_of(request))):
        raise bad_request('Grammar error: Unimplemented keys: ["propertyNames"]')


def schemas_of(request: Any) -> Iterator[object]:
    """Yields the JSON schemas of the reply, which may have any form."""
    form = request.get("structured_outputs")
    if isinstance(form, dict):
        yield form.get("json")
    chat_format = request.get("response_format")
    text = request.get("text")
    text_format = text.get("format") if isinstance(text, dict) else None
    for description in (chat_format, text_format):
        if isinstance(description, dict):
            schema = description.get("json_schema")
            yield description.get("schema")
            yield schema.get("schema") if isinstance(schema, dict) else None


def _constrains_names(schema: object) -> bool:
    """Returns whether a part of a schema is an object with constrained names."""
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if part.get("type") == "object" and "propertyNames" in part:
                return True
            parts += part.values()
        elif isinstance(part, list):
            parts += part
    return False


CHANGES = (
    Change(
        area="Chat, completions and responses",
        before="A schema of the reply with `propertyNames` is an error.",
        after="The schema constrains the reply.",
        forms=(Reading(paths=OPENAI, read=refuse_names),),
    ),
    Change(
        area="Chat, completions and responses",
        before="A `cache_salt` has at most 1,024 characters of any kind. An empty one and one of "
        "another type are validation errors.",
        after="A `cache_salt` has at most 128 characters, without `@`, `/`, `\\` and NUL.",
        forms=(Reading(paths=OPENAI, read=check_salt),),
    ),
    Change(
        area="Scheduler",
        before="With a connector and asynchronous steps, a request is preempted although a step "
        "under way computes its blocks, which are not free before that step is over. Without a "
        "tier of CPU blocks, the request loses its token of that step, and computes it again.",
        after="Such a request is not preempted. The request that needs blocks waits for a step.",
        forms=(Rules(SCHEDULER, {"keeps_deferred_victims": False}),),
        options=("kv-transfer-config",),
    ),
    Change(
        area="Scheduler",
        before="A tier of CPU blocks with ARC evicts nothing if the recent blocks are few, and no "
        "frequent block can be evicted.",
        after="A recent block is evicted.",
        forms=(Rules(SCHEDULER, {"chunk_uses": "offers"}),),
        options=("kv-transfer-config", "kv-offloading-size"),
    ),
    Change(
        area="Scheduler",
        before="With drafts, a request that resumes with one token is computed alone if no other "
        "request is in the step.",
        after="The request is padded with drafts, as beside others.",
        forms=(Rules(SCHEDULER, {"padded_resumptions": "beside"}),),
        options=("speculative-config",),
    ),
)
