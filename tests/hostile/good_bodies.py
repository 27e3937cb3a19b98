"""Bodies that every route takes, of many kinds: what a fuzzer begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HI = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"x"}'}}
PREFILLED = {
    "do_remote_prefill": True,
    "remote_engine_id": "e",
    "remote_request_id": "r",
    "remote_block_ids": [0, 1],
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "remote_num_tokens": 20,
}
CHATS: list[dict[str, Any]] = [
    {"messages": [HI], "max_tokens": 4},
    {"messages": [HI], "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}},
    {"messages": [HI], "tools": [WEATHER], "tool_choice": "required", "max_tokens": 90, "stream": True},
    {
        "messages": [HI],
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    },
    {
        "messages": [
            HI,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        ]
    },
    {"messages": [HI | {"tool_calls": [CALL]}], "logprobs": True, "top_logprobs": 2, "max_tokens": 2, "n": 2},
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": "http://a/b"}},
                ],
            }
        ]
    },
    {
        "messages": [HI],
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "x",
                "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
            },
        },
    },
    {
        "messages": [HI],
        "structured_outputs": {"regex": "[a-c]{3}"},
        "stop": ["x", "yy"],
        "seed": 1,
        "temperature": 0.5,
    },
    {"messages": [HI], "structured_outputs": {"grammar": 'root ::= "a" | "b" root'}, "max_tokens": 9},
    {
        "messages": [HI],
        "prompt_logprobs": 2,
        "echo": True,
        "return_token_ids": True,
        "logit_bias": {"5": 1.0},
    },
    {
        "messages": [HI],
        "kv_transfer_params": {"do_remote_decode": True},
        "cache_salt": "a",
        "min_tokens": 2,
        "max_tokens": 5,
    },
    {"messages": [HI], "kv_transfer_params": PREFILLED, "max_tokens": 3, "stream": True},
]
"""Good chats, of many kinds."""
TEXTS: list[dict[str, Any]] = [
    {"prompt": "hello", "max_tokens": 3},
    {"prompt": ["a", "b"], "n": 2, "max_tokens": 2, "stream": True},
    {"prompt": [[1, 2, 3], [4]], "echo": True, "logprobs": 3, "max_tokens": 1},
    {
        "prompt": [1, 2, 3],
        "truncate_prompt_tokens": 2,
        "stop": "a",
        "stop_token_ids": [5],
        "ignore_eos": True,
    },
    {"prompt": "hello", "kv_transfer_params": PREFILLED, "max_tokens": 2, "n": 2},
]
"""Good completions."""
RESPONSES: list[dict[str, Any]] = [
    {"input": "hi", "max_output_tokens": 9},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "stream": True},
    {
        "input": "hi",
        "tools": [{"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}}}],
        "tool_choice": "required",
    },
    {
        "input": [
            HI,
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "text": {"format": {"type": "json_object"}},
    },
]
MESSAGES: list[dict[str, Any]] = [
    {"model": "understudy-tiny", "messages": [HI], "max_tokens": 4, "system": "be"},
    {
        "model": "understudy-tiny",
        "messages": [HI],
        "max_tokens": 60,
        "stream": True,
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any"},
    },
    {
        "model": "understudy-tiny",
        "messages": [
            HI,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "b"}]}
                ],
            },
        ],
        "max_tokens": 3,
    },
]
SCORED: list[dict[str, Any]] = [{"text_1": "a", "text_2": ["b", "c"]}, {"queries": ["a"], "documents": ["b"]}]
RANKED: list[dict[str, Any]] = [{"query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}]
EMBEDDED: list[dict[str, Any]] = [
    {"input": "a"},
    {"input": [[1, 2]], "encoding_format": "base64", "dimensions": 8},
    {"messages": [HI], "truncate_prompt_tokens": 5},
]
GOOD: Mapping[str, Sequence[Any]] = {
    "/v1/chat/completions": CHATS,
    "/v1/chat/completions/render": CHATS,
    "/v1/chat/completions/batch": [{"messages": [[HI], [HI]], "max_tokens": 2}],
    "/v1/completions": TEXTS,
    "/v1/completions/render": TEXTS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/inference/v1/generate": [{"token_ids": [1, 2], "sampling_params": {"max_tokens": 3}, "stream": True}],
    "/tokenize": [{"prompt": "a", "return_token_strs": True}, {"messages": [HI], "tools": [WEATHER]}],
    "/score_completions": [{"prompt": "a " * 40, "pods": ["p"]}],
    "/score_chat_completions": [{"messages": [HI] * 9, "tools": [WEATHER], "add_special_tokens": True}],
    "/score_tokens": [{"tokens": [1] * 40, "media": [{"identifier": "a", "offset": 1, "length": 2}]}],
    "/v1/embeddings": EMBEDDED,
    "/pooling": [*EMBEDDED, {"input": "a", "task": "token_embed"}],
    "/classify": [{"input": ["a", "b"]}, {"messages": [HI]}],
    **dict.fromkeys(("/score", "/v1/score"), SCORED),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), RANKED),
    "/v1/load_lora_adapter": [{"lora_name": "a", "lora_path": "/a"}],
    "/v1/unload_lora_adapter": [{"lora_name": "a"}],
    "/admin/config": [{"inter-token-latency": "1ms", "max-tool-call-integer-param": 9}],
    "/fake_metrics": [{"running-requests": 3}, {"ttft-buckets-values": [1, 2]}],
}
"""Good bodies by path, beside those that are drawn from the schemas."""
