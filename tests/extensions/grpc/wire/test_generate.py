"""Generate says what HTTP says, token by token."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import grpc
import pytest
import requests
from smg_grpc_proto import vllm_engine_pb2 as messages

from tests.extensions.grpc.client import LIMIT_S, Engine, connected, ends_of, generate, tokens_of
from tests.running_server import RunningServer, running_server

pytestmark = pytest.mark.grpc


def drawn(number: int) -> tuple[list[int], dict[str, Any]]:
    """A prompt, and how it is to be answered, that follow from a number."""
    rng = Random(number)
    ids = [rng.randrange(1, 5000) for _ in range(rng.randint(1, 40))]
    sampling: dict[str, Any] = {"seed": number, "max_tokens": rng.randint(1, 60)}
    if number % 3 == 0:
        sampling["ignore_eos"] = True
    if number % 4 == 0:
        sampling["stop"] = ["e"]
        sampling["include_stop_str_in_output"] = number % 8 == 0
    if number % 5 == 0:
        sampling["min_tokens"] = min(3, sampling["max_tokens"])
    if number % 7 == 0:
        sampling["n"] = 2
    if number % 11 == 0:
        sampling["regex"] = "[a-c]{3,9}"
    return ids, sampling


def http_choices(
    server: RunningServer, ids: list[int], sampling: dict[str, Any]
) -> list[tuple[Any, ...]]:
    body = dict(sampling)
    if "regex" in body:
        body["structured_outputs"] = {"regex": body.pop("regex")}
    url = f"{server.url}/inference/v1/generate"
    answer = requests.post(url, json={"token_ids": ids, "sampling_params": body}, timeout=LIMIT_S)
    assert answer.status_code == 200, answer.text
    return [
        (choice["token_ids"], choice["finish_reason"], choice["stop_reason"])
        for choice in answer.json()["choices"]
    ]


def grpc_choices(
    engine: Engine, ids: list[int], sampling: dict[str, Any], stream: bool
) -> list[tuple[Any, ...]]:
    messages = engine.generate(generate(ids, stream, **sampling))
    choices = []
    for end in sorted(ends_of(messages), key=lambda end: end.index):
        stop = end.WhichOneof("matched_stop")
        tokens = tokens_of(messages, end.index) if stream else list(end.output_ids)
        choices.append((tokens, end.finish_reason, getattr(end, stop) if stop else None))
    return choices


def test_streamed_grpc_replies_equal_those_over_http(served: RunningServer, engine: Engine) -> None:
    def differs(number: int) -> bool:
        ids, sampling = drawn(number)
        return grpc_choices(engine, ids, sampling, True) != http_choices(served, ids, sampling)

    with ThreadPoolExecutor(8) as threads:
        assert [
            number for number, wrong in enumerate(threads.map(differs, range(77))) if wrong
        ] == []


def test_non_streamed_grpc_replies_equal_those_over_http(
    served: RunningServer, engine: Engine
) -> None:
    for number in range(0, 80, 7):
        ids, sampling = drawn(number)
        assert grpc_choices(engine, ids, sampling, False) == http_choices(served, ids, sampling), (
            number
        )


def test_text_is_accepted_as_a_prompt(engine: Engine) -> None:
    request = generate()
    request.text = "This is a test."
    assert {end.prompt_tokens for end in ends_of(engine.generate(request))} == {5}


def test_truncated_prompt_leaves_room_for_the_reply(engine: Engine) -> None:
    request = generate([7] * 5000, truncate_prompt_tokens=10)
    request.sampling_params.ClearField("max_tokens")
    assert {end.prompt_tokens for end in ends_of(engine.generate(request))} == {10}


def test_grpc_logprobs_equal_those_over_http(served: RunningServer, engine: Engine) -> None:
    messages = engine.generate(generate(range(1, 20), seed=4, logprobs=2, prompt_logprobs=1))
    sampling = {"seed": 4, "max_tokens": 5, "logprobs": 2, "prompt_logprobs": 1}
    body = {"token_ids": list(range(1, 20)), "sampling_params": sampling}
    answer = requests.post(f"{served.url}/inference/v1/generate", json=body, timeout=LIMIT_S).json()
    chunks = [message.chunk for message in messages if message.HasField("chunk")]
    logprobs = [
        pytest.approx(chunk.output_logprobs.token_logprobs[0], rel=1e-5) for chunk in chunks
    ]
    assert logprobs == [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert {len(chunk.output_logprobs.top_logprobs[0].token_ids) for chunk in chunks} == {2}
    first = chunks[0].input_logprobs
    assert list(first.token_ids) == list(range(1, 20))
    assert not first.token_logprobs[0].HasField("value")
    assert first.token_logprobs[1].value == pytest.approx(
        answer["prompt_logprobs"][1]["2"]["logprob"], rel=1e-5
    )
    assert not any(chunk.HasField("input_logprobs") for chunk in chunks[1:])
    [end] = ends_of(engine.generate(generate(range(1, 20), False, seed=4, logprobs=2)))
    assert len(end.output_logprobs.token_ids) == len(end.output_logprobs.top_logprobs) == 5


def test_prefill_returns_its_transfer_parameters(engine: Engine) -> None:
    request = generate(range(1, 33), False)
    request.kv_transfer_params_json = '{"do_remote_decode": true}'
    [end] = ends_of(engine.generate(request))
    params = json.loads(end.kv_transfer_params_json)
    assert (params["remote_block_ids"], params["do_remote_prefill"]) == ([[1, 2]], True)
    assert (end.kv_transfer_params.remote_host, end.kv_transfer_params.remote_port) == (
        params["remote_host"],
        params["remote_port"],
    )


def refused(**fields: Any) -> Any:
    request = generate()
    request.MergeFrom(messages.GenerateRequest(**fields))
    return request


def pixels(**fields: Any) -> dict[str, Any]:
    place = messages.PlaceholderRange(offset=0, length=2)
    return {"mm_inputs": messages.MultimodalInputs(**{"mm_placeholders": [place], **fields})}


BAD = {
    "no input": messages.GenerateRequest(),
    "no room": generate(max_tokens=0),
    "an unknown token": generate([1, 2**31]),
    "a prompt that is too long": generate([1] * 40_000),
    "temperature": generate(temperature=-1.0),
    "an empty stop": generate(stop=[""]),
    "n": generate(n=100_000),
    "logprobs": generate(logprobs=21),
    "a bias that is no number": generate(logit_bias={1: math.nan}),
    "truncate_prompt_tokens": generate(truncate_prompt_tokens=-2),
    "grammar": generate(grammar="root ::= ("),
    "choice": generate(choice=messages.ChoiceConstraint()),
    "data_parallel_rank": refused(data_parallel_rank=1),
    "media_refs": refused(media_refs=messages.MediaRefs(items=[messages.MediaRef(url="http://a")])),
    "kv_transfer_params_json": refused(kv_transfer_params_json="[]"),
    "a placeholder": refused(**pixels(mm_placeholders=[messages.PlaceholderRange(offset=9)])),
    "a hash too many": refused(**pixels(mm_hashes=["a", "b"])),
    "a tensor elsewhere": refused(
        **pixels(pixel_values=messages.TensorData(remote={"transport": "nixl"}))
    ),
}


def test_invalid_requests_return_invalid_argument(engine: Engine) -> None:
    for name, request in BAD.items():
        code, text = engine.refusal(request)
        assert (code, text != "") == (grpc.StatusCode.INVALID_ARGUMENT, True), (name, code, text)


def test_sampling_and_media_fields_of_a_request_are_accepted(engine: Engine) -> None:
    request = generate(
        range(1, 9),
        **{"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "frequency_penalty": 1.0},
        **{"presence_penalty": 1.0, "repetition_penalty": 1.1, "stop_token_ids": [7], "seed": -5},
        **{
            "skip_special_tokens": True,
            "spaces_between_special_tokens": True,
            "logit_bias": {3: 1.0},
        },
        **{"truncate_prompt_tokens": 4, "grammar_from_first_token": True, "json_object": True},
    )
    request.request_id = "mine"
    request.tokenized.original_text = "a b c d"
    request.data_parallel_rank = 0
    request.kv_transfer_params.remote_host = "a"
    request.mm_inputs.MergeFrom(pixels(mm_hashes=["a"])["mm_inputs"])
    request.extra_mm_inputs.add(
        modality=3, mm_placeholders=[messages.PlaceholderRange(offset=2, length=1)]
    )
    [end] = ends_of(engine.generate(request))
    assert end.prompt_tokens == 4


@pytest.mark.parametrize(("most_tokens", "finish"), [(128, "stop"), (3, "length")])
def test_generate_request_in_the_format_of_the_llm_d_simulator_is_accepted(
    most_tokens: int, finish: str
) -> None:
    request = messages.GenerateRequest(
        request_id="a", stream=True, tokenized={"input_ids": [5, 6, 7, 8]}
    )
    request.sampling_params.max_tokens = most_tokens
    with running_server("--grpc", "--mode", "echo") as server, connected(server.port) as engine:
        responses = engine.generate(request)
        request.stream = False
        [whole] = ends_of(engine.generate(request))
    expected_tokens = [5, 6, 7, 8] + ([0] if finish == "stop" else [])  # the end of text
    assert tokens_of(responses) == list(whole.output_ids) == expected_tokens
    [end] = ends_of(responses)
    assert (end.finish_reason, end.prompt_tokens, len(responses)) == (
        finish,
        4,
        len(expected_tokens) + 1,
    )
