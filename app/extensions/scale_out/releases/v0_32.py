"""Changes of vLLM 0.32 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Answer, Change

GENERATE = "/inference/v1/generate"
RENDERED = (
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/messages/render",
    "/v1/responses/render",
)
NEW_IN_CHOICES = ("stop_reason", "weight_versions")


def edit_generated(answer: Any) -> None:
    """Leaves out the output mode, and names tokens as OpenAI does."""
    if not isinstance(answer, dict):
        return
    answer.pop("output_mode", None)
    for choice in answer.get("choices", ()):
        for name in NEW_IN_CHOICES:
            choice.pop(name, None)
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict):
            logprobs["content"] = [_named_entry(entry) for entry in logprobs["content"]]


def _named_entry(entry: Any) -> Any:
    alternatives = [_named(candidate) for candidate in entry["top_logprobs"]]
    return {**_named(entry), "top_logprobs": alternatives}


def _named(candidate: Any) -> Any:
    token = f"token_id:{candidate['token_id']}"
    return {"token": token, "logprob": candidate["logprob"], "bytes": None}


def edit_sources(answer: Any) -> None:
    """Leaves out the sources of a single engine."""
    answer.clear()


CHANGES = (
    Change(
        area="Scale-out",
        before="`/kv_event_sources` of a single engine is empty.",
        after="`/kv_event_sources` has the configuration of each engine.",
        forms=(Answer(paths=("/kv_event_sources",), edit=edit_sources),),
        options=("kv-events-config",),
    ),
    Change(
        area="Scale-out",
        before="Answers of `/inference/v1/generate` have no `output_mode`, and their choices "
        "neither `stop_reason` nor `weight_versions`. Log probabilities name tokens "
        "`token_id:N`, without their rank.",
        after="Answers have `output_mode`; choices have `stop_reason` and `weight_versions`. Log "
        "probabilities have `token_id` and `rank`.",
        forms=(Answer(paths=(GENERATE,), edit=edit_generated),),
    ),
    Change(
        area="Scale-out",
        before="Rendered requests have no `output_mode`, `reasoning_ended`, and "
        "`reasoning_parser_kwargs`.",
        after="Rendered requests have these fields.",
        routes=RENDERED,
    ),
)
