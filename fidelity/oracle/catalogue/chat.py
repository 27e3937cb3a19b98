"""POST /v1/chat/completions: fields, limits, streams and errors."""

from fidelity.oracle.cases import MODEL, REMOVED, Area
from fidelity.oracle.catalogue.requests import (
    CHAT,
    CHAT_FIELDS,
    CONTEXT_WORDS,
    LONG_TEXT,
    QUESTION,
    SENTENCE,
    UNWRITTEN,
    USAGE,
)

AREA = Area("chat", path=CHAT, fields=CHAT_FIELDS, values=("finish_reason",))
SAMPLING = Area("chat sampling", path=CHAT, fields=CHAT_FIELDS)
STREAMS = Area("chat streams", path=CHAT, fields={**CHAT_FIELDS, "stream": True})
CONVERSATIONS = Area("conversations", path=CHAT, fields=CHAT_FIELDS)

AREA.case("smallest", "Every client reads this answer.")
AREA.case("twice", "The second equal prompt comes from the cache.")
AREA.each("model", "Unknown names are 404; the field is optional.", ["none", "", REMOVED, None, 7])
AREA.each(
    "n", "The number of choices is checked and converted.", [0, -1, 2, 3, "2", 1.5, None, True]
)
AREA.each(
    "max_tokens",
    "SDKs send the old name of the limit.",
    [0, -1, 1, "3", 2.5, None, 100_000],
    words=CONTEXT_WORDS,
)
AREA.each(
    "max_completion_tokens",
    "SDKs send the new name of the limit.",
    [0, -1, 1, 2048, 100_000],
    words=CONTEXT_WORDS,
)
AREA.variants(
    "Clients read what was added to an answer on request.",
    {
        "token ids": {"return_token_ids": True},
        "prompt text": {"return_prompt_text": True},
        "token offsets": {"return_token_offsets": True},
        "tokens as ids": {"logprobs": True, "return_tokens_as_token_ids": True},
        "echo": {"echo": True},
        "service tier": {"service_tier": "flex"},
        "user": {"user": "someone"},
        "unknown field": {"no_such_field": {"a": 1}},
        "metadata": {"metadata": {"a": "b"}, "store": True},
        "reasoning effort": {"reasoning_effort": "low"},
        "thinking budget": {"thinking_token_budget": 10},
        "without reasoning": {"include_reasoning": False},
        "weight versions": {"return_weight_versions": True},
        "kv transfer": {"kv_transfer_params": {"do_remote_decode": True}},
        "xargs": {"vllm_xargs": {"a": 1}},
        "request id": {"request_id": "mine"},
        "session id": {"session_id": "s1"},
        "stream interval": {"stream_interval": 2},
        "repetition detection": {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}},
        "mm payload": {"mm_payload": "none"},
    },
)
AREA.each("reasoning_effort", "The efforts are a fixed list.", ["high", "max", "none", "huge", 1])
AREA.each("priority", "A server without priorities refuses other than 0.", [0, 1, "x", None])
AREA.each(
    "cache_salt",
    "A salt separates tenants, and characters of paths are refused.",
    ["tenant", "", "a/b", "a@b", "x" * 129, 5],
)
AREA.each(
    "truncate_prompt_tokens", "A prompt can be cut from the left.", [-2, -1, 0, 1, 5, 4096, "4"]
)
AREA.each("truncation_side", "The side is a fixed list.", ["left", "right", "middle"])
AREA.each("kv_transfer_params", "Routers send an object.", [{}, None, [], "x"])
AREA.each("vllm_xargs", "Extra arguments have plain values.", [{}, {"a": [1]}, {"a": {}}, "x"])
AREA.case(
    "prompt too long",
    "Agents read the numbers of this error.",
    {"messages": [{"role": "user", "content": LONG_TEXT}]},
    words=CONTEXT_WORDS,
)
AREA.case(
    "prompt and limit too long",
    "Agents read the numbers of this error.",
    {"max_tokens": 2040},
    words=CONTEXT_WORDS,
)
AREA.case(
    "prompt too long in a stream",
    "An error before the first chunk is a plain answer.",
    {"messages": [{"role": "user", "content": LONG_TEXT}], "stream": True},
    words=CONTEXT_WORDS,
)

SAMPLING.sweep(
    "Limits, conversions and null are contract.",
    {
        "temperature": [-0.1, 0, 1, 2, 2.1, "0.5", "x", None, True, 1e-9],
        "top_p": [-0.1, 0, 0.5, 1, 1.1, "1", None],
        "top_k": [-2, -1, 0, 1, 2.5, "3", None],
        "min_p": [-0.1, 0, 0.5, 1, 1.1, None],
        "presence_penalty": [-2.1, -2, 0, 2, 2.1, None],
        "frequency_penalty": [-2.1, -2, 2, 2.1, "1"],
        "repetition_penalty": [-1, 0, 0.5, 2, 2.1, None],
        "seed": [0, -1, 2**63 - 1, 2**63, "5", 1.5, None],
        "min_tokens": [-1, 0, 2, 4, 5, None],
        "stop": [UNWRITTEN, [UNWRITTEN] * 2, [], "", [""], [UNWRITTEN] * 5, 5, None],
        "stop_token_ids": [[], [5], [-1], [10**6], ["5"], 5, None],
        "allowed_token_ids": [[], [5, 6], [-1], [10**6], None],
        "bad_words": [[], ["river"], [""], "x", None],
        "logit_bias": [{}, {"5": 1}, {"5": 101}, {"5": -101}, {"x": 1}, {"9999999": 1}, [], None],
        "ignore_eos": [True, "yes", 2],
        "skip_special_tokens": [False, None],
        "spaces_between_special_tokens": [False, None],
        "include_stop_str_in_output": [True, 3],
        "length_penalty": [-1, "x"],
        "watermarking": [None, False],
        "user": [5, None],
    },
    words=("out of vocabulary",),
)
SAMPLING.variants(
    "Beams replace sampling, and exclude some fields.",
    {
        "beam search": {"use_beam_search": True, "n": 2, "temperature": 0},
        "beam search of one": {"use_beam_search": True},
        "beam search in a stream": {"use_beam_search": True, "n": 2, "stream": True},
        "beam search with log probabilities": {"use_beam_search": True, "n": 2, "logprobs": True},
        "beam search without tokens": {"use_beam_search": True, "max_tokens": 0},
        "greedy with several choices": {"temperature": 0, "n": 2},
        "minimum above maximum": {"min_tokens": 9, "max_tokens": 4},
    },
)

STREAMS.case("smallest", "The order of chunks is contract.")
STREAMS.variants(
    "Usage arrives in a chunk after the last choice, or in all chunks.",
    {
        "with usage": {"stream_options": USAGE},
        "with continuous usage": {"stream_options": {**USAGE, "continuous_usage_stats": True}},
        "with continuous usage alone": {"stream_options": {"continuous_usage_stats": True}},
        "without usage": {"stream_options": {"include_usage": False}},
        "with empty options": {"stream_options": {}},
        "with null options": {"stream_options": None},
        "with options of a wrong type": {"stream_options": "yes"},
        "with unknown options": {"stream_options": {"include_obfuscation": True}},
    },
)
STREAMS.variants(
    "What is added to a stream on request has its place.",
    {
        "of two choices": {"n": 2, "stream_options": USAGE},
        "of one token": {"max_tokens": 1, "ignore_eos": True},
        "with token ids": {"return_token_ids": True},
        "with prompt text": {"return_prompt_text": True},
        "with echo": {"echo": True},
        "with a stop string": {"stop": [UNWRITTEN]},
        "by intervals": {"stream_interval": 3, "max_tokens": 8},
        "with prompt log probabilities": {"prompt_logprobs": 1},
        "with kv transfer": {"kv_transfer_params": {"do_remote_decode": True}},
        "with weight versions": {"return_weight_versions": True},
    },
)
STREAMS.each("stream", "The field is a boolean.", ["yes", "true", 1, None, 5])
STREAMS.each("stream_interval", "The interval is positive.", [0, -1, 1, "2", None])
STREAMS.case(
    "options without a stream", "They require a stream.", {"stream": False, "stream_options": USAGE}
)


def _user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


TEXT_PART = {"type": "text", "text": "Name a color."}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CONVERSATIONS.variants(
    "Frameworks send conversations in many forms.",
    {
        "system": {"messages": [{"role": "system", "content": "Be short."}, *QUESTION]},
        "developer": {"messages": [{"role": "developer", "content": "Be short."}, *QUESTION]},
        "only system": {"messages": [{"role": "system", "content": "Be short."}]},
        "empty": {"messages": []},
        "absent": {"messages": REMOVED},
        "null": {"messages": None},
        "a string": {"messages": "Hi"},
        "a list of strings": {"messages": ["Hi"]},
        "without a role": {"messages": [{"content": "Hi"}]},
        "unknown role": {"messages": [{"role": "robot", "content": "Hi"}]},
        "role of a wrong type": {"messages": [{"role": 5, "content": "Hi"}]},
        "without content": {"messages": [{"role": "user"}]},
        "null content": {"messages": [_user(None)]},
        "empty content": {"messages": [_user("")]},
        "number as content": {"messages": [_user(5)]},
        "text parts": {"messages": [_user([TEXT_PART, TEXT_PART])]},
        "no parts": {"messages": [_user([])]},
        "strings as parts": {"messages": [_user(["Hi", "there"])]},
        "unknown part": {"messages": [_user([{"type": "smell", "smell": "x"}])]},
        "part without a type": {"messages": [_user([{"text": "Hi"}])]},
        "text part without text": {"messages": [_user([{"type": "text"}])]},
        "refusal part": {"messages": [_user([{"type": "refusal", "refusal": "no"}])]},
        "image": {"messages": [_user([TEXT_PART, IMAGE_PART])]},
        "audio": {
            "messages": [
                _user([{"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}])
            ]
        },
        "file": {"messages": [_user([{"type": "file", "file": {"file_id": "f"}}])]},
        "name": {"messages": [{"role": "user", "name": "Ann", "content": "Hi"}]},
        "unknown key": {"messages": [{"role": "user", "content": "Hi", "mood": "good"}]},
        "assistant last": {"messages": [*QUESTION, {"role": "assistant", "content": "Red"}]},
        "assistant without content": {"messages": [*QUESTION, {"role": "assistant"}, *QUESTION]},
        "tool result": {
            "messages": [
                *QUESTION,
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "get_time", "arguments": "{}"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "noon"},
            ]
        },
        "tool call with broken arguments": {
            "messages": [
                *QUESTION,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "get_time", "arguments": "{"},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "c1", "content": "noon"},
            ]
        },
        "tool result without a call": {"messages": [*QUESTION, {"role": "tool", "content": "x"}]},
        "reasoning of an assistant": {
            "messages": [*QUESTION, {"role": "assistant", "reasoning": "hm", "content": "Red"}]
        },
    },
)
CONVERSATIONS.variants(
    "Templates are told how a prompt ends.",
    {
        "continued": {
            "messages": [*QUESTION, {"role": "assistant", "content": "Red"}],
            "continue_final_message": True,
            "add_generation_prompt": False,
        },
        "continued with a prompt": {"continue_final_message": True},
        "without generation prompt": {"add_generation_prompt": False},
        "with special tokens": {"add_special_tokens": True},
        "template of the request": {"chat_template": "{{ messages }}"},
        "template arguments": {"chat_template_kwargs": {"enable_thinking": False}},
        "template arguments of a wrong type": {"chat_template_kwargs": [1]},
        "documents": {"documents": [{"title": "A", "text": SENTENCE}]},
        "documents of a wrong type": {"documents": "x"},
        "media arguments": {"media_io_kwargs": {}, "mm_processor_kwargs": {}},
    },
)
BATCH = Area(
    "batch chat",
    path=f"{CHAT}/batch",
    fields={"model": MODEL, "messages": [QUESTION, QUESTION], "max_tokens": 3},
)
BATCH.variants(
    "One request has several conversations.",
    {
        "two": {},
        "one": {"messages": [QUESTION]},
        "none": {"messages": []},
        "an empty one": {"messages": [[]]},
        "a plain conversation": {"messages": QUESTION},
        "two choices": {"n": 2},
        "streamed": {"stream": True},
        "log probabilities": {"logprobs": True, "top_logprobs": 1},
        "token ids": {"return_token_ids": True},
        "one too long": {"messages": [QUESTION, [{"role": "user", "content": LONG_TEXT}]]},
        "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "structured": {"structured_outputs": {"choice": ["red"]}, "max_tokens": 20},
        "unknown model": {"model": "none"},
        "beams": {"use_beam_search": True},
    },
)
AREAS = (AREA, SAMPLING, STREAMS, CONVERSATIONS, BATCH)
