"""Bounds of whole answers that a client sends to the /derender routes, in vLLM's order."""

from collections.abc import Sequence

from app.core.api.pipeline import RequestPipeline
from app.core.server.http.errors import bad_request
from app.extensions.scale_out import derender_protocol as derender

MAX_SEQUENCES = 16_384
"""Most answers of a body, and most choices of an answer: the default of VLLM_MAX_N_SEQUENCES."""
ENTRIES_PER_VALUE = 10
"""Log probabilities whose check takes as long as decoding a token."""


def check_answers(pipeline: RequestPipeline, answers: Sequence[derender.GenerateOutput]) -> None:
    """Checks the sizes of all lists before any token is decoded. Pauses at the end of a slice.

    Raises:
        ApiError: 400 for more answers, choices, tokens or log probabilities than the server allows.
    """
    if len(answers) > MAX_SEQUENCES:
        raise bad_request(
            f"generate_responses count ({len(answers)}) exceeds server maximum ({MAX_SEQUENCES}). "
            "Set VLLM_MAX_N_SEQUENCES to increase this limit."
        )
    max_model_len = pipeline.limits.max_model_len
    for answer in answers:
        if len(answer.choices) > MAX_SEQUENCES:
            raise bad_request(
                f"choices count ({len(answer.choices)}) in response '{answer.request_id}' "
                f"exceeds server maximum ({MAX_SEQUENCES})."
            )
        for choice in answer.choices:
            _check_choice(pipeline, choice)
        count = len(answer.prompt_logprobs or ())
        if count > max_model_len:
            raise bad_request(
                f"prompt_logprobs length ({count}) in response '{answer.request_id}' "
                f"exceeds max_model_len ({max_model_len})."
            )


def _check_choice(pipeline: RequestPipeline, choice: derender.RenderedChoice) -> None:
    max_model_len = pipeline.limits.max_model_len
    sizes = {"token_ids": len(choice.token_ids or ())}
    entries: Sequence[derender.TokenLogprobs] = ()
    if choice.logprobs is not None:
        entries = choice.logprobs.content or ()
        sizes["logprobs.content"] = len(entries)
    for name, size in sizes.items():
        if size > max_model_len:
            raise bad_request(
                f"{name} length ({size}) in choice {choice.index} "
                f"exceeds max_model_len ({max_model_len})."
            )
    max_logprobs = pipeline.limits.max_logprobs
    if max_logprobs < 0:
        return
    for entry in entries:
        if len(entry.top_logprobs) > max_logprobs:
            raise bad_request(
                f"top_logprobs count ({len(entry.top_logprobs)}) in choice {choice.index} "
                f"exceeds max_logprobs ({max_logprobs})."
            )
    pipeline.spend(1 + len(entries) // ENTRIES_PER_VALUE)


def check_prompts(pipeline: RequestPipeline, prompts: Sequence[Sequence[int] | None]) -> None:
    """Raises ApiError 400 for a prompt with more tokens than the context has."""
    max_model_len = pipeline.limits.max_model_len
    for prompt in prompts:
        if prompt is not None and len(prompt) > max_model_len:
            raise bad_request(
                f"prompt_token_ids length ({len(prompt)}) exceeds max_model_len ({max_model_len})."
            )
