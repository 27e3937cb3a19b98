"""Changes of vLLM 0.25 to chats and completions."""

import re
from typing import Any

from app.core.server.http.errors import ApiError, bad_request
from app.core.versions.change import Answer, Change
from app.extensions.past_releases.paths import GENERATING, VALIDATED

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
)
"""Paths of fields, and the same paths with the member of the union."""


def fail_as_python(error: ApiError, request: Any) -> ApiError | None:
    """Returns Python's error of a key of `logit_bias` that is not a number."""
    if not error.message.startswith("logit_bias contains key(s)"):
        return None
    key = next(key for key in request["logit_bias"] if not key.lstrip("-").isdigit())
    return bad_request(f"invalid literal for int() with base 10: {key!r}")


def fail_with_member(error: ApiError, request: Any) -> ApiError | None:
    """Returns an error of the schema, whose path names the member of a union that was tried."""
    if error.type != "Bad Request" or not error.param:
        return None
    for pattern, path in MEMBERS:
        param, changes = pattern.subn(path, error.param)
        if changes:
            return ApiError(error.status, error.type, error.message, param)
    return None


CHANGES = (
    Change(
        area="Errors",
        before="`param` of a validation error names the member of a union, as in `body.stop.str`.",
        after="`param` is the path of the field alone, such as `body.stop`.",
        forms=(Answer(paths=VALIDATED, failure=fail_with_member),),
    ),
    Change(
        area="Errors",
        before="A key of `logit_bias` that is not a number fails with Python's words.",
        after="The error names `logit_bias` and the keys.",
        forms=(Answer(paths=GENERATING, failure=fail_as_python),),
    ),
)
