"""The sampling parameters of a rendered request:

vLLM's, with its defaults or what the request says.
"""

from functools import cache
from typing import Any

from app.core.server.flask.application import Understudy
from tests.application import app_of

DEFAULTS = {
    **{
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "temperature": 1.0,
    },
    **{
        "top_p": 1.0,
        "min_p": 0.0,
        "stop": [],
        "stop_token_ids": [],
        "max_tokens": 5,
        "output_kind": 2,
    },
    **{"skip_clone": True, "bad_words": [], "skip_reading_prefix_cache": False},
}


@cache
def application() -> Understudy:
    return app_of("--seed", "1", "--force-dummy-tokenizer", "--enable-scale-out")


def rendered(path: str, body: dict[str, Any]) -> Any:
    return application().test_client().post(path, json=body).get_json()


def sampling(**fields: Any) -> dict[str, Any]:
    [body] = rendered("/v1/completions/render", {"prompt": "hi", "max_tokens": 5, **fields})
    params: dict[str, Any] = body["sampling_params"]
    return params


def test_omitted_and_empty_sampling_fields_are_rendered_as_the_defaults() -> None:
    assert sampling() == DEFAULTS
    assert sampling(top_k=0, ignore_eos=False, min_tokens=0, stop=None, bad_words=[]) == DEFAULTS


def test_sampling_fields_are_rendered_even_if_they_are_zero() -> None:
    values = {
        "seed": 0, "top_k": 3, "logprobs": 0, "ignore_eos": True, "min_tokens": 2, "presence_penalty": -1.0,
        "frequency_penalty": 0.5, "repetition_penalty": 1.2, "temperature": 0.5, "top_p": 0.5, "min_p": 0.1,
        "stop": ["a", "b"], "stop_token_ids": [7], "bad_words": ["x"], "logit_bias": {"5": 3.0},
        "allowed_token_ids": [5, 6], "include_stop_str_in_output": True, "skip_special_tokens": False,
        "stream_interval": 2, "thinking_token_budget": 4, "n": 2, "prompt_logprobs": 1,
        "structured_outputs": {"regex": "a+"}, "vllm_xargs": {"a": 1}, "watermarking": False,
        "repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2},
    }  # fmt: skip
    params = sampling(**values, kv_transfer_params={"do_remote_decode": True})
    assert params.pop("extra_args") == {"a": 1, "kv_transfer_params": {"do_remote_decode": True}}
    assert params.pop("structured_outputs")["regex"] == "a+"
    assert params.pop("skip_reading_prefix_cache") is True
    wanted = {
        name: values[name] for name in values if name not in ("structured_outputs", "vllm_xargs")
    }
    assert params == {name: DEFAULTS[name] for name in DEFAULTS if name in params} | wanted


def test_sampling_values_are_normalized_as_in_vllm() -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"stop": "abc"}, {"stop": ["abc"], "output_text_buffer_length": 2}),
        ({"temperature": 0, "top_p": 0.5, "top_k": 3}, {"temperature": 0.0}),
        ({"temperature": 0.001}, {"temperature": 0.01}),
        ({"logit_bias": {"5": 300}}, {"logit_bias": {"5": 100.0}}),
        ({"stream": True}, {"output_kind": 1}),
    ]
    for fields, params in cases:
        assert sampling(**fields) == DEFAULTS | params
    # So it is in vLLM's dump, where 16 is the default of the sampling parameters.
    assert "max_tokens" not in sampling(max_tokens=None) | sampling(max_tokens=16)


MESSAGES = [{"role": "user", "content": "hi"}]


def test_messages_and_responses_render_the_tokens_of_the_equivalent_chat() -> None:
    chat = rendered("/v1/chat/completions/render", {"messages": MESSAGES, "max_tokens": 5})
    message = rendered(
        "/v1/messages/render",
        {"model": "understudy-tiny", "messages": MESSAGES, "max_tokens": 5, "stream": True},
    )
    response = rendered("/v1/responses/render", {"input": "hi", "max_output_tokens": 5})
    for generated, prefix in ((chat, "chatcmpl-"), (message, "chatcmpl-"), (response, "resp_")):
        assert generated["token_ids"] == chat["token_ids"] and generated["request_id"].startswith(
            prefix
        )
        assert generated["sampling_params"]["max_tokens"] == 5
    assert message["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (
        response["sampling_params"]["extra_args"] == {}
        and "extra_args" not in chat["sampling_params"]
    )
    follows = rendered("/v1/responses/render", {"input": "hi", "previous_response_id": "resp_1"})[
        "error"
    ]
    assert (follows["type"], follows["param"]) == ("invalid_request_error", "previous_response_id")
    beam = {"prompt": "hi", "use_beam_search": True}
    assert rendered("/v1/completions/render", beam)["error"]["type"] == "BadRequestError"


def test_rendered_prompts_have_numbered_ids_and_token_offsets() -> None:
    prompts = rendered(
        "/v1/completions/render", {"prompt": ["Hello there", "Hi"], "return_token_offsets": True}
    )
    assert [prompt["request_id"][-2:] for prompt in prompts] == ["-0", "-1"]
    for prompt, text in zip(prompts, ("Hello there", "Hi"), strict=True):
        places = prompt["token_offsets"]
        assert (
            len(places) == len(prompt["token_ids"])
            and places[0][0] == 0
            and places[-1][1] == len(text)
        )
    [ids] = rendered("/v1/completions/render", {"prompt": [3], "return_token_offsets": True})
    assert ids["token_offsets"] is None


def test_rendered_prompts_repeat_at_most_64_mib_of_parameters() -> None:
    body = {"prompt": ["a"] * 100, "kv_transfer_params": {"a": "x" * 700_000}}
    error = rendered("/v1/completions/render", body)["error"]
    assert error["code"] == 400 and "64 MiB" in error["message"]
    body["prompt"] = ["a"] * 3
    assert len(rendered("/v1/completions/render", body)) == 3
