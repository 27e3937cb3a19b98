"""Tokens apart from texts: /tokenize, /detokenize, rendering, generation from ids, derendering."""

from fidelity.oracle.cases import MODEL, REMOVED, Area
from fidelity.oracle.catalogue.requests import (
    CHAT,
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    COMPLETIONS,
    LONG_TEXT,
    MESSAGES,
    QUESTION,
    RESPONSES,
    SENTENCE,
    TOOLS,
    UNWRITTEN,
)

TOKENIZE = Area(
    "tokenize",
    path="/tokenize",
    fields={"model": MODEL, "prompt": SENTENCE},
    values=("tokens", "token_strs"),
)
DETOKENIZE = Area("detokenize", path="/detokenize", fields={"model": MODEL, "tokens": [10, 11]})
RENDER = Area("render", path=f"{CHAT}/render", fields=CHAT_FIELDS)
GENERATE = Area(
    "generate",
    path="/inference/v1/generate",
    fields={"model": MODEL, "token_ids": [10, 11, 12], "sampling_params": {"max_tokens": 3}},
)

TOKENIZE.variants(
    "Token counts agree exactly with the real tokenizer.",
    {
        "prompt": {},
        "strings of tokens": {"return_token_strs": True},
        "without special tokens": {"add_special_tokens": False},
        "without a model": {"model": REMOVED},
        "unknown model": {"model": "none"},
        "empty": {"prompt": ""},
        "emoji": {"prompt": "🙂 🙃", "return_token_strs": True},
        "accents": {"prompt": "Zürich, naïve café", "return_token_strs": True},
        "spaces": {"prompt": "  a\t\n  b  "},
        "code": {"prompt": "def f(x):\n    return x ** 2  # square\n"},
        "numbers": {"prompt": "3.14159 1,000,000 2**63"},
        "Chinese": {"prompt": "你好，世界"},
        "special token": {"prompt": "<|user|>Hi<|endoftext|>"},
        "control characters": {"prompt": "a\x00b\x07"},
        "long": {"prompt": LONG_TEXT},
        "number": {"prompt": 5},
        "list": {"prompt": ["Hi"]},
        "absent": {"prompt": REMOVED},
        "null": {"prompt": None},
        "unknown field": {"mood": "good"},
    },
)
TOKENIZE.variants(
    "A conversation is rendered by the template.",
    {
        "chat": {"prompt": REMOVED, "messages": QUESTION},
        "chat without generation prompt": {
            "prompt": REMOVED,
            "messages": QUESTION,
            "add_generation_prompt": False,
        },
        "chat that continues": {
            "prompt": REMOVED,
            "messages": [*QUESTION, {"role": "assistant", "content": "Red"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
        "chat that continues with a prompt": {
            "prompt": REMOVED,
            "messages": QUESTION,
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        "chat with tools": {"prompt": REMOVED, "messages": QUESTION, "tools": TOOLS},
        "chat with strings": {
            "prompt": REMOVED,
            "messages": QUESTION,
            "return_token_strs": True,
        },
        "empty chat": {"prompt": REMOVED, "messages": []},
        "chat and prompt": {"messages": QUESTION},
        "chat with a template": {
            "prompt": REMOVED,
            "messages": QUESTION,
            "chat_template": "{{ messages }}",
        },
    },
)
DETOKENIZE.each(
    "tokens",
    "Ids are checked.",
    [
        [],
        [0],
        [1, 2, 3],
        [6000, 6143],
        [6147],
        [6148],
        [10**7],
        [2**63],
        [-1],
        ["5"],
        [1.5],
        "x",
        None,
        REMOVED,
        [[1]],
    ],
    values=("prompt",),
)
DETOKENIZE.case("unknown model", "404.", {"model": "none"})
DETOKENIZE.case("without a model", "The model is optional.", {"model": REMOVED})

RENDER.variants(
    "Routers get the ids of a prompt.",
    {
        "chat": {},
        "chat with tools": {"tools": TOOLS},
        "chat with sampling": {"temperature": 0.5, "top_k": 5, "seed": 1, "stop": ["a"]},
        "chat that streams": {"stream": True, "stream_options": {"include_usage": True}},
        "chat with a salt": {"cache_salt": "t"},
        "chat with kv transfer": {"kv_transfer_params": {"do_remote_decode": True}},
        "chat with a format": {"response_format": {"type": "json_object"}},
        "chat with two choices": {"n": 2},
        "chat without a limit": {"max_tokens": REMOVED},
        "chat of an unknown model": {"model": "none"},
        "chat that is too long": {"messages": [{"role": "user", "content": LONG_TEXT}]},
        "chat that is empty": {"messages": []},
        "chat with log probabilities": {"logprobs": True, "top_logprobs": 2},
        "chat with a request id": {"request_id": "mine"},
    },
    values=("token_ids",),
)
RENDER.case(
    "completion",
    "A list has one item for each prompt.",
    path=f"{COMPLETIONS}/render",
    body=COMPLETION_FIELDS,
    values=("token_ids",),
)
RENDER.case(
    "completion of two prompts",
    "A list has one item for each prompt.",
    path=f"{COMPLETIONS}/render",
    body={**COMPLETION_FIELDS, "prompt": ["Hi", SENTENCE]},
    values=("token_ids",),
)
RENDER.case(
    "completion of ids",
    "Ids are passed on.",
    path=f"{COMPLETIONS}/render",
    body={**COMPLETION_FIELDS, "prompt": [10, 11]},
    values=("token_ids",),
)
RENDER.case(
    "message",
    "Messages can be rendered, too.",
    path=f"{MESSAGES}/render",
    body={"model": MODEL, "max_tokens": 5, "messages": QUESTION},
    values=("token_ids",),
)
RENDER.case(
    "response",
    "Responses can be rendered, too.",
    path=f"{RESPONSES}/render",
    body={"model": MODEL, "input": "Name a color.", "max_output_tokens": 5},
    values=("token_ids",),
)

GENERATE.sweep(
    "Decoders are sent ids and sampling parameters.",
    {
        "token_ids": [[], [10], [-1], [10**7], "x", REMOVED, None, [7] * 2048],
        "sampling_params": [
            {},
            {"max_tokens": 0},
            {"max_tokens": 1, "n": 2},
            {"temperature": -1},
            {"logprobs": 1},
            {"prompt_logprobs": 1},
            {"unknown": 1},
            {"stop": [UNWRITTEN]},
            {"top_p": 0},
            {"structured_outputs": {"choice": ["red"]}},
            None,
            REMOVED,
            "x",
        ],
        "model": ["none", REMOVED],
        "stream": [True],
        "stream_options": [{"include_usage": True}],
        "priority": [1],
        "cache_salt": ["t", ""],
        "request_id": ["mine"],
        "kv_transfer_params": [{"do_remote_decode": True}],
        "features": [None, {}],
        "output_mode": ["token_ids", "text", "derender", "x"],
        "return_token_ids": [True, False],
    },
)
GENERATE.variants(
    "Streams have ids.",
    {
        "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
        "stream with log probabilities": {
            "stream": True,
            "sampling_params": {"max_tokens": 2, "logprobs": 1},
        },
        "stream that fails": {"stream": True, "token_ids": [7] * 3000},
    },
)

GENERATED = {
    "request_id": "r1",
    "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [10, 11, 12]}],
}
DERENDER = Area("derender", path=f"{CHAT}/derender")
DERENDER.variants(
    "Routers turn ids into an answer.",
    {
        "chat": {"model": MODEL, "generate_response": GENERATED},
        "chat with counts": {
            "model": MODEL,
            "generate_response": GENERATED,
            "prompt_tokens": 5,
        },
        "chat with a request": {
            "model": MODEL,
            "generate_response": GENERATED,
            "chat_request": CHAT_FIELDS,
        },
        "chat without choices": {
            "model": MODEL,
            "generate_response": {"request_id": "r1", "choices": []},
        },
        "chat without a response": {"model": MODEL},
        "chat of an unknown model": {"model": "none", "generate_response": GENERATED},
        "chat with an unknown id": {
            "model": MODEL,
            "generate_response": {
                "request_id": "r1",
                "choices": [{"index": 0, "finish_reason": "stop", "token_ids": [10**7]}],
            },
        },
    },
    values=("content",),
)
DERENDER.variants(
    "Routers turn ids into an answer.",
    {
        "completion": {"model": MODEL, "generate_responses": [GENERATED]},
        "completion of two prompts": {"model": MODEL, "generate_responses": [GENERATED] * 2},
        "completion without responses": {"model": MODEL, "generate_responses": []},
        "completion of a wrong type": {"model": MODEL, "generate_responses": GENERATED},
        "completion with counts": {
            "model": MODEL,
            "generate_responses": [GENERATED],
            "prompt_tokens": [5],
        },
    },
    path=f"{COMPLETIONS}/derender",
    values=("text",),
)
ABORT = Area("abort requests")
for path in ("/inference/v1/abort_requests", "/abort_requests"):
    for name, body in {
        "unknown ids": {"request_ids": ["a", "b"]},
        "no ids": {"request_ids": []},
        "nothing": {},
        "a string": {"request_ids": "a"},
    }.items():
        ABORT.case(f"{path} {name}", "Routers abort requests.", path=path, body=body)
AREAS = (TOKENIZE, DETOKENIZE, RENDER, GENERATE, DERENDER, ABORT)
