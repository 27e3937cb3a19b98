"""Changes of vLLM 0.25 to chats and completions."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from app.core.server.http.errors import ApiError, bad_request
from app.core.versions.change import Answer, Change, Rules
from app.core.versions.paths import COMPLETIONS, GENERATING, VALIDATED

SCHEDULER = "app.core.engine.batch.SchedulerRules"
WRAPPED = "function-wrap[__log_extra_fields__()]"
MEMBERS = (
    (
        re.compile(
            r"^(body\.(?:stop|input|system|structured_outputs\.json)|body\.messages\.\d+\."
            r"(?:\w+\.)?content)$"
        ),
        r"\1.str",
    ),
    (re.compile(r"^(body\.response_format)(?=\.|$)"), rf"\1.{WRAPPED}"),
    (re.compile(r"^body\.sampling_params$"), "body.sampling_params.is-instance[SamplingParams]"),
    (re.compile(r"^(body\.vllm_xargs\.[^.]+)$"), r"\1.str"),
)
"""Paths of fields, and the same paths with the member of the union."""
OF_COMPLETIONS = ((re.compile(r"^body\.prompt(?=\.|$)"), "body.prompt.list[constrained-int]"),)
OF_TOKENIZE = ((re.compile(r"^body\.prompt$"), f"body.{WRAPPED}.prompt"),)
MISSING = "'type': 'missing'"
Members = Sequence[tuple[re.Pattern[str], str]]


def fail_as_python(error: ApiError, request: Any) -> ApiError | None:
    """Returns Python's error of a key of `logit_bias` that is not a number."""
    if not error.message.startswith("logit_bias contains key(s)"):
        return None
    key = next(key for key in request["logit_bias"] if not key.lstrip("-").isdigit())
    return bad_request(f"invalid literal for int() with base 10: {key!r}")


def fail_with_member(
    error: ApiError, request: Any, *, members: Members, of_missing: bool = False
) -> ApiError | None:
    """Returns an error of the schema, whose path names the member of a union that was tried.

    A field that is missing has no member, unless the body is a union itself (`of_missing`).
    """
    if error.type != "Bad Request" or not error.param:
        return None
    is_missing = MISSING in error.message and not of_missing
    for pattern, path in members:
        if is_missing and pattern.fullmatch(error.param):
            return None
        param, changes = pattern.subn(path, error.param)
        if changes:
            return ApiError(error.status, error.type, error.message, param)
    return None


CHANGES = (
    Change(
        area="Errors",
        before="`param` of a validation error names the member of a union, as in `body.stop.str`.",
        after="`param` is the path of the field alone, such as `body.stop`.",
        forms=(
            Answer(paths=VALIDATED, failure=partial(fail_with_member, members=MEMBERS)),
            Answer(paths=COMPLETIONS, failure=partial(fail_with_member, members=OF_COMPLETIONS)),
            Answer(
                paths=("/tokenize",),
                failure=partial(fail_with_member, members=OF_TOKENIZE, of_missing=True),
            ),
        ),
    ),
    Change(
        area="Errors",
        before="A key of `logit_bias` that is not a number fails with Python's words.",
        after="The error names `logit_bias` and the keys.",
        forms=(Answer(paths=GENERATING, failure=fail_as_python),),
    ),
    Change(
        area="Scheduler",
        before="With drafts, a request that resumes with one token is computed without drafts.",
        after="The request is padded with drafts if others are in the step.",
        forms=(Rules(SCHEDULER, {"padded_resumptions": "none"}),),
        options=("speculative-config",),
    ),
)
