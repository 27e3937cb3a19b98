"""Bounds and metrics of whole answers on the /derender routes, in vLLM's words."""

from typing import Any

import pytest

from tests.extensions.scale_out.test_derender import CHAT, TEXT, answer, post

MAX_SEQUENCES = 16_384
CONTEXT = 64
LIMITS = ("--max-model-len", str(CONTEXT), "--max-logprobs", "3")


def logprobs(entries: int, alternatives: int) -> dict[str, Any]:
    """Returns log probabilities of `entries` tokens, each with `alternatives`."""
    candidate = {"token_id": 7, "logprob": -1.0}
    entry = {**candidate, "top_logprobs": [candidate] * alternatives}
    return {"content": [entry] * entries}


def message_of(path: str, body: dict[str, Any], *flags: str) -> str:
    """Returns the message of an error with the status 400."""
    response = post(path, body, *flags)
    assert response.status_code == 400, response.get_data(as_text=True)[:500]
    message: str = response.get_json()["error"]["message"]
    return message


def both_routes(generated: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the bodies of both routes for an answer."""
    return [(CHAT, {"generate_response": generated}), (TEXT, {"generate_responses": [generated]})]


def test_an_answer_has_a_limited_number_of_choices() -> None:
    choice = {"index": 0, "token_ids": [7], "finish_reason": "stop"}
    generated = {"request_id": "r", "choices": [choice] * (MAX_SEQUENCES + 1)}
    for path, body in both_routes(generated):
        assert message_of(path, body) == (
            "choices count (16385) in response 'r' exceeds server maximum (16384)."
        )


def test_a_body_has_a_limited_number_of_answers() -> None:
    body = {"generate_responses": [answer([7])] * (MAX_SEQUENCES + 1)}
    assert message_of(TEXT, body, "--max-json-values", "1000000") == (
        "generate_responses count (16385) exceeds server maximum (16384). "
        "Set VLLM_MAX_N_SEQUENCES to increase this limit."
    )


@pytest.mark.parametrize(
    ("generated", "message"),
    [
        (
            answer([7] * (CONTEXT + 1)),
            "token_ids length (65) in choice 0 exceeds max_model_len (64).",
        ),
        (
            answer([7], logprobs=logprobs(CONTEXT + 1, 0)),
            "logprobs.content length (65) in choice 0 exceeds max_model_len (64).",
        ),
        (
            answer([7], logprobs=logprobs(1, 4)),
            "top_logprobs count (4) in choice 0 exceeds max_logprobs (3).",
        ),
        (
            {**answer([7]), "prompt_logprobs": [None] * (CONTEXT + 1)},
            "prompt_logprobs length (65) in response 'r' exceeds max_model_len (64).",
        ),
    ],
    ids=["tokens", "logprobs", "alternatives", "prompt logprobs"],
)
def test_an_answer_that_no_request_could_have_is_rejected(
    generated: dict[str, Any], message: str
) -> None:
    for path, body in both_routes(generated):
        assert message_of(path, body, *LIMITS) == message


def test_a_prompt_fits_into_the_context() -> None:
    prompt = [7] * (CONTEXT + 1)
    for path, body in both_routes(answer([7])):
        prompts = prompt if path == CHAT else [prompt]
        assert message_of(path, {**body, "prompt_token_ids": prompts}, *LIMITS) == (
            "prompt_token_ids length (65) exceeds max_model_len (64)."
        )


@pytest.mark.parametrize("flags", [LIMITS, ("--max-logprobs", "-1")], ids=["limit", "unlimited"])
def test_an_answer_at_the_bounds_is_derendered(flags: tuple[str, ...]) -> None:
    count = 3 if flags == LIMITS else 40
    generated = answer([7] * CONTEXT, logprobs=logprobs(CONTEXT, count))
    for path, body in both_routes(generated):
        assert post(path, body, *flags).status_code == 200


def test_metrics_have_all_fields_of_vllm() -> None:
    speculative = {"mean_acceptance_length": 2.0, "num_spec_steps": 1}
    generated = {**answer([7]), "metrics": {"speculative_decoding": speculative, "other": 1}}
    stream = {"stream": True, "generate_chunk": generated}
    answers = [post(path, body).get_json() for path, body in both_routes(generated)]
    answers += [post(path, stream).get_json()["chunk"] for path in (CHAT, TEXT)]
    for shown in answers:
        metrics = shown["metrics"]
        assert list(metrics) == [
            *("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms"),
            *("tokens_per_second", "speculative_decoding", "other"),
        ]
        assert metrics["tokens_per_second"] is None
        assert metrics["speculative_decoding"] == {
            **{"mean_acceptance_length": 2.0, "draft_acceptance_rate": None},
            **{"acceptance_histogram": None, "num_spec_steps": 1},
            **{"num_accepted_draft_tokens": None, "num_draft_tokens": None},
            **{"num_spec_tokens": None, "per_step_accepted": None, "per_step_drafted": None},
        }
