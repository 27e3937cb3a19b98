"""Changes of vLLM 0.29 to completions, and to a tier of CPU blocks."""

from typing import Any

from app.core.server.http.errors import bad_request
from app.core.versions.change import Change, Reading, Rules
from app.extensions.past_releases.paths import COMPLETIONS, INVOCATIONS

SCHEDULER = "app.core.engine.batch.SchedulerRules"


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
    Change(
        area="Scheduler",
        before="Each lookup of a block in a tier of CPU blocks counts for the store threshold.",
        after="The prompts count in which the block would be stored.",
        forms=(Rules(SCHEDULER, {"chunk_uses": "lookups"}),),
        options=("kv-transfer-config", "kv-offloading-size"),
    ),
)
