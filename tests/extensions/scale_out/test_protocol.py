"""Requests that consist of tokens."""

import json
from typing import Any

from app.core.protocol.decoding import decode
from app.extensions.scale_out.protocol import GenerateRequest


def test_generate_request_becomes_a_completion_with_the_same_fields() -> None:
    sampling = {
        **{
            "n": 2,
            "temperature": 0.25,
            "top_p": 0.75,
            "top_k": 7,
            "seed": 3,
            "stop": ["a"],
            "max_tokens": 5,
        },
        **{
            "stop_token_ids": [9],
            "min_tokens": 2,
            "logprobs": 4,
            "prompt_logprobs": 6,
            "bad_words": ["b"],
        },
    }
    fields = {
        **{
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": "s",
        },
        **{"priority": 8, "request_id": "r", "return_token_ids": True},
    }
    extra = {"extra_args": {"kv_transfer_params": {"a": 1}}}

    def completion(sampling: dict[str, Any], **fields: Any) -> Any:
        body = {"token_ids": [1, 2], "sampling_params": sampling, **fields}
        request = decode(json.dumps(body).encode(), "application/json", GenerateRequest)
        return request.as_completion(62)

    converted = completion({**sampling, **extra}, **fields)
    assert {name: getattr(converted, name) for name in sampling} == sampling
    assert converted.stream_options.include_usage
    plain = {name: value for name, value in fields.items() if name != "stream_options"}
    assert {name: getattr(converted, name) for name in plain} == plain
    assert (converted.prompt, converted.kv_transfer_params, converted.ignore_eos) == (
        [1, 2],
        {"a": 1},
        False,
    )
    assert completion(extra, kv_transfer_params={"b": 2}).kv_transfer_params == {"b": 2}
    assert (
        completion({}, ignore_eos=True).ignore_eos and completion({"ignore_eos": True}).ignore_eos
    )
    assert completion({}).bad_words == [] and completion({}).max_tokens == 62
    assert completion({"max_tokens": 9999}).max_tokens == 62
