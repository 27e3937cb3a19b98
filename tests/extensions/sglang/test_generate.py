"""POST /generate: SGLang's native generation, whole and streamed, and its errors."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.core.api.completions import completion_prompt
from tests.client import Client, in_process

DIALECT = "--dialect=sglang"
HELLO: dict[str, Any] = {"text": "Hello there"}


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[Client]:
    with in_process(DIALECT, "--max-model-len=4096") as client:
        yield client


def generate(client: Client, **fields: Any) -> Any:
    answer = client.post("/generate", fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(client: Client, **fields: Any) -> list[Any]:
    text = client.post("/generate", {**fields, "stream": True}).text
    *events, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def error(client: Client, **fields: Any) -> Any:
    answer = client.post("/generate", fields)
    assert answer.status_code == 400, answer.text
    return answer.json()


def params(**fields: Any) -> dict[str, Any]:
    return {"sampling_params": {"ignore_eos": True, **fields}}


def test_generate_response_contains_text_token_ids_and_meta_info(
    client: Client,
) -> None:
    answer = generate(client, **HELLO, **params(max_new_tokens=4), rid="mine")
    assert answer["text"] and len(answer["output_ids"]) == 4
    meta_info = answer["meta_info"]
    assert meta_info.pop("e2e_latency") >= 0
    assert meta_info == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 4},
        "prompt_tokens": 3,
        "weight_version": "default",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": 4,
        "cached_tokens": 0,
    }


def test_copies_of_a_long_rid_count_for_each_reply() -> None:
    """4,096 replies have ids of 100 KB each."""
    with in_process(DIALECT, "--server-memory=256MiB") as client:
        fields = {**HELLO, "rid": "r" * 100_000}
        answer = client.post("/generate", {**fields, "sampling_params": {"n": 4096}})
        assert answer.status_code == 413, answer.text
        assert generate(client, **fields, **params(max_new_tokens=1))["text"]


def test_generate_route_accepts_put_requests(client: Client) -> None:
    url = client.url + "/generate"
    assert client.session.put(url, json=HELLO).json()["text"]


def test_reply_ends_after_128_tokens_by_default(client: Client) -> None:
    meta_info = generate(client, **HELLO, **params())["meta_info"]
    assert meta_info["finish_reason"] == {"type": "length", "length": 128}


def test_finish_reason_names_the_matched_stop_token_or_string() -> None:
    with in_process(DIALECT, "--mode=echo") as client:
        natural = generate(client, text="one two three")
        assert natural["text"] == "one two three"
        assert natural["meta_info"]["finish_reason"] == {
            "type": "stop",
            "matched": natural["output_ids"][-1],
        }
        stopped = generate(client, text="one two three", sampling_params={"stop": [" two"]})
        assert stopped["text"] == "one"
        assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": " two"}
        stop_fields = {"stop": " two", "no_stop_trim": True}
        assert (
            generate(client, text="one two three", sampling_params=stop_fields)["text"] == "one two"
        )


def test_request_for_zero_new_tokens_generates_no_tokens(client: Client) -> None:
    answer = generate(client, input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 0})
    assert (answer["text"], answer["output_ids"]) == ("", [])
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert answer["meta_info"]["prompt_tokens"] == 3


def test_batch_of_prompts_returns_a_list_of_replies(client: Client) -> None:
    answers = generate(
        client,
        text=["Hello", "there"],
        sampling_params=[{"max_new_tokens": 2}, {"max_new_tokens": 3}],
        rid="batch",
    )
    assert [answer["meta_info"]["id"] for answer in answers] == ["batch_0", "batch_1"]
    assert [len(answer["output_ids"]) for answer in answers] == [2, 3]
    named = generate(client, input_ids=[[1, 2], [3]], rid=["a", "b"], **params(max_new_tokens=1))
    assert [answer["meta_info"]["id"] for answer in named] == ["a", "b"]
    assert [answer["meta_info"]["prompt_tokens"] for answer in named] == [2, 1]
    [only] = generate(client, text=["Hello"])
    assert only["text"]


def test_events_of_a_streamed_batch_contain_the_index_of_their_prompt(client: Client) -> None:
    events = stream(client, text=["Hello", "there"], **params(max_new_tokens=2))
    ends = {event["index"]: event for event in events if event["meta_info"]["finish_reason"]}
    assert sorted(ends) == [0, 1]
    assert all(len(end["output_ids"]) == 2 for end in ends.values())


def test_n_replies_are_returned_as_a_list_even_if_they_are_equal(client: Client) -> None:
    fields = params(max_new_tokens=3, n=2, temperature=0)
    first, second = generate(client, **HELLO, **fields)
    assert first["output_ids"] == second["output_ids"]
    assert first["meta_info"]["id"] != second["meta_info"]["id"]


def test_each_logprob_entry_contains_logprob_token_id_and_text(client: Client) -> None:
    meta_info = generate(
        client,
        **HELLO,
        **params(max_new_tokens=2),
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=2,
        return_text_in_logprobs=True,
    )["meta_info"]
    assert meta_info["output_token_logprobs_length"] == 2
    first, *others = meta_info["input_token_logprobs"]
    assert first[0] is None and isinstance(first[1], int) and first[2] == "H"
    assert [len(triple) for triple in others] == [3, 3]
    assert "".join(triple[2] for triple in [first, *others]) == "Hello there"
    assert meta_info["input_top_logprobs"][0] is None
    assert [len(top) for top in meta_info["output_top_logprobs"]] == [2, 2]
    for triple, top in zip(
        meta_info["output_token_logprobs"], meta_info["output_top_logprobs"], strict=True
    ):
        assert triple == top[0], "the likeliest token was chosen"


def test_logprobs_of_requested_tokens_have_no_texts_by_default(client: Client) -> None:
    [event] = stream(
        client,
        **HELLO,
        **params(max_new_tokens=1),
        return_logprob=True,
        token_ids_logprob=[5, 9],
    )
    meta_info = event["meta_info"]
    assert meta_info["input_token_logprobs"] == []
    [[first, second]] = meta_info["output_token_ids_logprobs"]
    assert (first[1:], second[1:]) == ([5, None], [9, None])
    assert meta_info["output_token_logprobs"][0][2] is None


def test_logprob_start_len_selects_the_first_prompt_logprob(client: Client) -> None:
    fields = {"input_ids": [1, 2, 3, 4], "return_logprob": True, "logprob_start_len": 3}
    meta_info = generate(client, **fields, **params(max_new_tokens=1))["meta_info"]
    assert [triple[1] for triple in meta_info["input_token_logprobs"]] == [4]


def test_prompt_token_ids_are_returned_on_request(client: Client) -> None:
    fields = {"input_ids": [7, 8], "return_prompt_token_ids": True}
    assert generate(client, **fields)["prompt_token_ids"] == [7, 8]


@pytest.mark.parametrize(
    "fields",
    [
        {"bootstrap_host": None, "bootstrap_port": None, "bootstrap_room": None},
        {"bootstrap_host": "10.0.0.1", "bootstrap_port": 8998, "bootstrap_room": 2**62},
        {"bootstrap_host": ["10.0.0.1", None], "bootstrap_room": [1, None], "text": ["a", "b"]},
        {"sampling_params": None},
        {"sampling_params": {"temperature": None, "max_new_tokens": None, "stop": None}},
        {"sampling_params": {"temperature": 100.0, "top_k": -1, "custom_params": {"a": 1}}},
        {"text": "a", "input_ids": [1, 2]},
        {"unknown": {"field": 1}},
    ],
)
def test_nulls_and_fields_without_effect_are_accepted(client: Client, fields: Any) -> None:
    generate(client, **{**HELLO, **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Either text, input_ids or input_embeds"),
        ({"text": ""}, "cannot be empty"),
        ({"text": []}, "cannot be an empty list"),
        ({"input_ids": []}, "input_ids cannot be empty"),
        ({"input_ids": [[]]}, "cannot be empty"),
        ({"input_ids": [1, [2]]}, "or lists of token IDs"),
        ({"input_ids": [-1]}, "out of vocabulary"),
        ({"input_ids": [1] * 4096}, "is longer than the model's context length (4096 tokens)"),
        ({"text": "a", "input_ids": [[1]]}, "the same number of prompts"),
        ({**HELLO, "image_data": "x.png"}, "image_data is not simulated"),
        ({**HELLO, "sampling_params": {"temperature": -1}}, "temperature must be"),
        ({**HELLO, "sampling_params": {"top_p": 0}}, "top_p must be in (0, 1]"),
        ({**HELLO, "sampling_params": {"top_k": 0}}, "top_k must be"),
        ({**HELLO, "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens must be at least 0"),
        ({**HELLO, "sampling_params": {"max_new_tokens": 4095}}, "maximum context length of 4096"),
        ({**HELLO, "sampling_params": {"n": 5000}}, "n must be in [1, 4096]"),
        ({**HELLO, "sampling_params": {"regex": "a", "ebnf": "b"}}, "Only one of"),
        ({**HELLO, "sampling_params": [{}, {}]}, "length of sampling_params (2)"),
        ({**HELLO, "sampling_params": []}, "length of sampling_params (0)"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 2}]}, "n must be the same"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "Duplicate request IDs"),
        ({"text": ["a"] * 4097}, "at most 4096 prompts"),
        ({**HELLO, "lora_path": "none"}, "`none` does not exist"),
        ({**HELLO, "routed_dp_rank": 2}, "out of range [0, 1)"),
        ({**HELLO, "return_logprob": True, "logprob_start_len": 9}, "logprob_start_len 9"),
        ({"text": ["a", "b"], "cache_salt": ["x"]}, "length of cache_salt (1)"),
        ({**HELLO, "return_logprob": True, "token_ids_logprob": [10**9]}, "out-of-vocab"),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_invalid_generate_request_returns_an_error_message(
    client: Client, fields: Any, words: str, streams: bool
) -> None:
    if streams:
        [event] = stream(client, **fields)
        assert words in event["error"].pop("message")
        kind = {"type": "invalid_request_error", "code": 400, "retryable": False}
        assert event == {"error": kind}
    else:
        body = error(client, **fields)
        assert list(body) == ["error"] and list(body["error"]) == ["message"]
        assert words in body["error"]["message"]
    assert [load["num_reqs"] for load in client.get("/get_load").json()] == [0]


@pytest.mark.parametrize("streams", [False, True])
def test_invalid_sampling_parameter_returns_an_error_string(client: Client, streams: bool) -> None:
    for wrong in ({"temperatur": 1}, {"temperature": "hot"}, {"stop": [1]}):
        body = error(client, **HELLO, sampling_params=wrong, stream=streams)
        assert next(iter(wrong)) in body["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"text":5}',
        b'{"text":"a","stream":"yes"}',
        b'{"text":"\\ud800"}',
    ]
    + [b'{"text":"a","bootstrap_port":"x"}', b'{"input_ids":' + b"[" * 2000 + b"]" * 2000 + b"}"],
)
def test_invalid_body_returns_a_flat_error_object(client: Client, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = client.session.post(client.url + "/generate", data=body, headers=headers)
    assert answer.status_code == 400
    fields = answer.json()
    assert fields.pop("message").startswith("The body is invalid")
    assert fields == {"object": "error", "type": "Bad Request", "param": None, "code": 400}


def test_cache_salts_separate_the_cached_prompts_of_a_batch() -> None:
    with in_process(DIALECT, "--enable-kvcache") as client:
        fields = {"input_ids": [[1] * 40, [1] * 40], "cache_salt": ["a", "b"]}
        for cached in (0, 32):
            answers = generate(client, **fields)
            assert [answer["meta_info"]["cached_tokens"] for answer in answers] == [cached] * 2


@pytest.mark.parametrize("streams", [False, True])
def test_draining_server_rejects_generate_requests_with_503(streams: bool) -> None:
    with in_process(DIALECT) as client:
        client.post("/admin/drain")
        answer = client.post("/generate", {**HELLO, "stream": streams})
        assert (answer.status_code, answer.json()["code"]) == (503, 503)


def test_full_queue_returns_503_or_an_abort_event_in_a_stream() -> None:
    flags = ("--max-num-seqs=1", "--max-waiting-queue-length=1", "--time-to-first-token=10m")
    with in_process(DIALECT, *flags) as client:
        waiting = [
            client.app.test_client().post("/generate", json={**HELLO, "stream": True})
            for _ in range(2)
        ]
        answer = client.post("/generate", HELLO)
        assert answer.status_code == 503
        assert answer.json() == {
            "object": "error",
            "message": "The request queue is full.",
            "type": "503",
            "param": None,
            "code": 503,
        }
        [event] = stream(client, **HELLO)
        assert event["meta_info"]["finish_reason"] == {
            "type": "abort",
            "message": "The request queue is full.",
            "status_code": 503,
            "err_type": None,
        }
        for response in waiting:
            response.close()
        assert client.get("/get_load").json()[0]["num_reqs"] == 0


def test_abort_request_route_aborts_one_request_by_id_or_all_requests() -> None:
    with in_process(DIALECT, "--time-to-first-token=10m") as client:
        for body in ({"rid": "mine"}, {"abort_all": True}):
            response = client.app.test_client().post(
                "/generate", json={**HELLO, "rid": "mine", "stream": True}
            )
            assert client.get("/get_load").json()[0]["num_reqs"] == 1
            assert client.post("/abort_request", {"rid": "other"}).status_code == 200
            assert client.get("/get_load").json()[0]["num_reqs"] == 1
            answer = client.post("/abort_request", body)
            assert (answer.status_code, answer.text) == (200, "")
            assert client.get("/get_load").json()[0]["num_reqs"] == 0
            [event] = response.text.split("\n\n")[:1]
            end = json.loads(event.removeprefix("data: "))["meta_info"]["finish_reason"]
            assert (end["type"], end["message"]) == ("abort", "Aborted")


def test_response_that_would_repeat_a_long_prompt_too_often_is_rejected(client: Client) -> None:
    fields = {"input_ids": [7] * 4000, **params(max_new_tokens=1, n=1500)}
    message = error(client, **fields, return_prompt_token_ids=True)
    assert message["error"]["message"].startswith("The response would take ")


def test_repeated_prompt_is_tokenized_once(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[object] = []

    def counted(pipeline: Any, request: Any, prompt: Any) -> Any:
        prompts.append(prompt)
        return completion_prompt(pipeline, request, prompt)

    monkeypatch.setattr("app.extensions.sglang.generate.completion_prompt", counted)
    answers = generate(client, text=["one", "two", "two"], **params(max_new_tokens=1, n=3))
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1] * 9
    assert prompts in (["one", "two"], ["one", "two", "two"])


def test_stream_with_too_many_logprobs_is_rejected(client: Client) -> None:
    fields = {**HELLO, "return_logprob": True, "top_logprobs_num": 20}
    [event] = stream(client, **fields, **params(max_new_tokens=4000))
    assert "log probabilities" in event["error"]["message"]
    assert len(stream(client, **fields, **params(max_new_tokens=4))) == 1


def test_embedding_model_rejects_generation() -> None:
    with in_process(DIALECT, "--task=embed") as client:
        assert client.post("/generate", HELLO).status_code == 404
        assert client.get("/model_info").json()["is_generation"] is False
