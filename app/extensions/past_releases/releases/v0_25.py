"""Changes of vLLM 0.25 to chats and completions."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request
from app.core.versions.change import Answer, Change
from app.extensions.past_releases.paths import GENERATING


def fail_as_python(error: ApiError, request: Any) -> ApiError | None:
    """Returns Python's error of a key of `logit_bias` that is not a number."""
    if not error.message.startswith("logit_bias contains key(s)"):
        return None
    key = next(key for key in request["logit_bias"] if not key.lstrip("-").isdigit())
    return bad_request(f"invalid literal for int() with base 10: {key!r}")


CHANGES = (
    Change(
        area="Errors",
        before="A key of `logit_bias` that is not a number fails with Python's words.",
        after="The error names `logit_bias` and the keys.",
        forms=(Answer(paths=GENERATING, failure=fail_as_python),),
    ),
)
