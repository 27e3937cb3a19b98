"""Token in, token out: render, generate, and prefill apart from decode."""

from typing import Any

import pytest

from tests.client import MODEL, Client, events, in_process

MESSAGES = [{"role": "user", "content": "Hello there"}]
GENERATE = "/inference/v1/generate"


def generate(client: Client, **fields: Any) -> Any:
    body = {
        "token_ids": [5, 6, 7],
        "sampling_params": {"max_tokens": 4, "ignore_eos": True},
        **fields,
    }
    answer = client.post(GENERATE, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_generate_route_returns_the_text_of_token_ids_on_request(client: Client) -> None:
    body = generate(client, request_id="mine", output_mode="text")
    assert body["request_id"] == "generate-tokens-mine"
    (choice,) = body["choices"]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (4, "length")
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 4)
    assert (
        choice["text"]
        == client.post("/detokenize", {"tokens": choice["token_ids"]}).json()["prompt"]
    )


def test_generate_stream_sends_one_token_per_event(client: Client) -> None:
    params = {"max_tokens": 3, "ignore_eos": True}
    for options in (None, {"include_usage": True}):
        body = {
            "token_ids": [5],
            "sampling_params": params,
            "stream": True,
            "stream_options": options,
        }
        chunks = events(client.post(GENERATE, body))
        assert [len(event["choices"][0]["token_ids"]) for event in chunks[:3]] == [1, 1, 1]
        reasons = [event["choices"][0]["finish_reason"] for event in chunks[:3]]
        assert reasons == [None, None, "length"]
        assert [event["usage"]["completion_tokens"] for event in chunks[3:]] == (
            [3] if options else []
        )


TWO = {"token_ids": [1, 2], "sampling_params": {}}


def test_tokens_only_server_rejects_requests_that_need_a_tokenizer() -> None:
    with in_process("--tokens-only") as client:
        body = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5}}
        for fields, phrase in (
            ({"sampling_params": {"max_tokens": 5, "stop": ["never"]}}, "stop strings"),
            (
                {"sampling_params": {"max_tokens": 5, "stop": "never"}, "stream": True},
                "stop strings",
            ),
            ({"output_mode": "text"}, "requires a tokenizer"),
        ):
            answer = client.post(GENERATE, {**body, **fields})
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error["param"]) == (
                400,
                "BadRequestError",
                None,
            )
            assert phrase in error["message"]
        for params in (
            {"stop": None},
            {"stop": []},
            {"detokenize": False},
            {"stop_token_ids": [9]},
        ):
            answer = client.post(GENERATE, {**body, "sampling_params": {"max_tokens": 5, **params}})
            assert answer.status_code == 200, answer.text
            assert "text" not in answer.json()["choices"][0]
        assert client.post("/v1/completions/render", {"prompt": "hi"}).status_code == 200
    with in_process("--enable-scale-out") as client:
        stopped = {
            **body,
            "sampling_params": {"max_tokens": 5, "stop": ["never"]},
            "output_mode": "text",
        }
        assert client.post(GENERATE, stopped).status_code == 200


NO_MEDIA: dict[str, Any] = {"mm_hashes": {}, "mm_placeholders": {}}


def media(*spans: tuple[int, int]) -> dict[str, Any]:
    placeholders = [{"offset": offset, "length": length} for offset, length in spans]
    return {"mm_hashes": {"image": ["a"] * len(spans)}, "mm_placeholders": {"image": placeholders}}


def test_rejection_of_an_invalid_generate_request_names_the_invalid_field(client: Client) -> None:
    valid = {"token_ids": [1], "sampling_params": {}}
    for body, param in (
        ({"sampling_params": {}}, "body.token_ids"),
        ({"token_ids": [1]}, "body.sampling_params"),
        *(({**valid, "token_ids": ids}, "body.token_ids") for ids in ([], [-1], "x")),
        ({**valid, "sampling_params": {"max_tokens": "x"}}, "body.sampling_params"),
        ({**valid, "sampling_params": {"temperature": 3}}, "temperature"),
        ({**valid, "sampling_params": {"detokenize": False}, "output_mode": "text"}, "body"),
        ({**TWO, "features": {"mm_hashes": {}}}, "body.features.mm_placeholders"),
        ({**TWO, "features": media((0, 2), (1, 1))}, "body.features"),
        ({**TWO, "features": media((1, 2))}, "body"),
        ({**TWO, "features": NO_MEDIA, "content_parts": [{}]}, "body"),
        ({**valid, "reasoning_parser_kwargs": {"x": 1}}, "body.reasoning_parser_kwargs.x"),
        ({"token_ids": [1] * 40_000, "sampling_params": {"max_tokens": 5}}, None),
    ):
        answer = client.post(GENERATE, body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body


def test_rendered_chat_generates_the_same_reply_as_the_chat(client: Client) -> None:
    rendered = client.post(
        "/v1/chat/completions/render", {"messages": MESSAGES, "max_tokens": 7, "temperature": 0}
    ).json()
    count = client.post("/tokenize", {"messages": MESSAGES}).json()
    assert rendered["token_ids"] == count["tokens"]
    assert rendered["sampling_params"]["max_tokens"] == 7
    sent = {key: rendered[key] for key in ("token_ids", "sampling_params", "model")}
    for model, status in (("first", 200), ("nobody's", 404)):
        answer = client.post("/v1/chat/completions/render", {"model": model, "messages": MESSAGES})
        assert (answer.status_code, answer.json().get("model", model)) == (status, model)
    text = generate(client, **sent, output_mode="text")["choices"][0]["text"]
    assert text == client.chat(max_tokens=7, temperature=0)["choices"][0]["message"]["content"]


def test_text_model_rejects_media_on_every_route() -> None:
    address = "https://example.com/a.png"
    block = {"type": "image", "source": {"type": "url", "url": address}}
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]}]
    item = {"role": "user", "content": [{"type": "input_image", "image_url": address}]}
    with in_process("--multimodal", "false", "--enable-scale-out") as client:
        for path, body in (
            ("/v1/chat/completions", {"messages": messages}),
            ("/v1/chat/completions/render", {"messages": messages}),
            ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}),
            ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [block]}]}),
            ("/v1/responses", {"input": [item]}),
            ("/tokenize", {"messages": messages}),
        ):
            answer = client.post(path, {"model": MODEL, **body})
            error = answer.json()["error"]
            assert (answer.status_code, error["type"], error.get("param")) == (
                400,
                "BadRequestError",
                None,
            )
            assert "is not a multimodal model" in error["message"]


def test_prefill_returns_transfer_parameters_that_a_decode_accepts(client: Client) -> None:
    prefill_params = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
    }
    for prefilled in (
        client.chat(max_tokens=1, kv_transfer_params=prefill_params),
        client.complete(kv_transfer_params=prefill_params),
        generate(client, kv_transfer_params=prefill_params),
        generate(
            client,
            sampling_params={"max_tokens": 1, "extra_args": {"kv_transfer_params": prefill_params}},
        ),
    ):
        params = prefilled["kv_transfer_params"]
        assert (params["do_remote_prefill"], params["do_remote_decode"]) == (True, False)
        assert params["remote_engine_id"] and params["remote_block_ids"] and params["remote_host"]
        assert client.complete(kv_transfer_params=params)["kv_transfer_params"] is None
    assert client.complete()["kv_transfer_params"] is None


@pytest.mark.parametrize("ids", [[5, 6, 7], [], [-1], [True]])
def test_decode_accepts_prompt_token_ids_in_the_transfer_parameters(
    client: Client, ids: Any
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "kv_transfer_params": {"prompt_token_ids": ids}}
    answer = client.post("/v1/chat/completions", body)
    if ids == [5, 6, 7]:
        assert answer.json()["usage"]["prompt_tokens"] == 3
        echoed = client.post("/v1/chat/completions", body | {"echo": True}).json()
        assert echoed["usage"]["prompt_tokens"] > 3
    else:
        param = "kv_transfer_params.prompt_token_ids"
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_remote_prefill_takes_only_the_transfer_time() -> None:
    with in_process("--time-to-first-token", "5s", "--kv-cache-transfer-latency", "1ms") as client:
        client.complete(kv_transfer_params={"do_remote_prefill": True})
        assert client.metric("vllm:time_to_first_token_seconds_bucket", le="2.5") == 1
    flags = (
        "--time-to-first-token",
        "1ms",
        "--kv-cache-transfer-latency",
        "1ms",
        "--enable-kvcache",
    )
    with in_process(*flags, "--block-size", "4", "--kv-cache-size", "1000") as client:
        prompt = list(range(100, 140))
        client.complete(prompt=prompt[:20])
        client.complete(prompt=prompt, kv_transfer_params={"do_remote_prefill": True})
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            assert client.metric("vllm:prompt_tokens_by_source_total", source=source) == 20
        for tier, tokens in (("device", 20), ("p2p", 20), ("host", 0)):
            assert client.metric("vllm:prompt_tokens_cached_by_source_total", source=tier) == tokens
        for name, count in (
            *(
                ("external_prefix_cache_hits_total", 20),
                ("external_prefix_cache_queries_total", 20),
            ),
            *(("prefix_cache_hits_total", 20), ("request_prefill_kv_computed_tokens_sum", 20)),
            *(("nixl_xfer_time_seconds_count", 1), ("num_requests_running", 0)),
        ):
            assert client.metric(f"vllm:{name}") == count, name


def test_omni_model_generates_an_image_on_request() -> None:
    with in_process("--omni", "--model", MODEL) as client:
        fields = {"messages": MESSAGES, "max_tokens": 2}
        plain = client.post("/v1/chat/completions", fields).json()
        assert isinstance(plain["choices"][0]["message"]["content"], str)
        drawn = client.post("/v1/chat/completions", fields, headers={"X-Send-Image": "true"}).json()
        kinds = [block["type"] for block in drawn["choices"][0]["message"]["content"]]
        assert kinds == ["text", "image_url"]
        wrong = client.post("/v1/chat/completions", fields, headers={"X-Send-Image": "perhaps"})
        assert wrong.status_code == 400
        assert client.post("/admin/config", {"image-emission-rate": 101}).status_code == 400
        client.post("/admin/config", {"image-emission-rate": 100})
        always = client.post("/v1/chat/completions", fields).json()["choices"][0]["message"][
            "content"
        ]
        assert always[-1]["image_url"]["url"].startswith("data:image/png;base64,")
        none = client.post("/v1/chat/completions", fields, headers={"X-Send-Image": "false"}).json()
        assert isinstance(none["choices"][0]["message"]["content"], str)


def test_request_with_the_rank_header_of_another_rank_is_rejected_with_400(client: Client) -> None:
    def pinned(rank: str, **fields: Any) -> Any:
        body = {"prompt": "Hello", "max_tokens": 1, **fields}
        return client.post("/v1/completions", body, headers={"X-data-parallel-rank": rank})

    assert pinned("0").status_code == 200
    assert pinned("x").status_code == 200
    assert (pinned("3").status_code, pinned("3").json()["error"]["type"]) == (
        400,
        "BadRequestError",
    )
    streamed = pinned("3", stream=True)
    assert streamed.status_code == 200 and '"code":400' in streamed.text


@pytest.mark.parametrize(
    ("flags", "status"),
    [((), 404), (("--enable-scale-out",), 404), (("--tokens-only",), 200)],
)
def test_abort_requests_route_exists_only_with_the_tokens_only_flag(
    flags: tuple[str, ...], status: int
) -> None:
    with in_process(*flags) as client:
        assert client.post("/abort_requests", {"request_ids": ["a"]}).status_code == status
