"""Changes of vLLM 0.29 to completions."""

from typing import Any

from app.core.server.http.errors import bad_request
from app.core.versions.change import Change, Reading
from app.extensions.past_releases.paths import COMPLETIONS, INVOCATIONS


def refuse_all_logprobs(request: Any) -> None:
    """Refuses the log probabilities of the whole vocabulary.

    Raises:
        ApiError: 400.
    """
    count = request.get("logprobs")
    if "prompt" in request and isinstance(count, int) and count < 0:
        raise bad_request("`logprobs` must be a positive value.", "logprobs", count)


CHANGES = (
    Change(
        area="Chat and completions",
        before="A completion with `logprobs: -1` is an error.",
        after="`logprobs: -1` asks for the whole vocabulary.",
        forms=(Reading(paths=(*COMPLETIONS, INVOCATIONS), read=refuse_all_logprobs),),
    ),
)
