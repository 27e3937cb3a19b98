"""POST /v1/completions: prompts, fields and streams; log probabilities of both routes."""

from fidelity.oracle.cases import MODEL, REMOVED, Area
from fidelity.oracle.catalogue.requests import (
    CHAT,
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    COMPLETIONS,
    CONTEXT_WORDS,
    LONG_TEXT,
    SENTENCE,
    UNWRITTEN,
    USAGE,
)

AREA = Area("completions", path=COMPLETIONS, fields=COMPLETION_FIELDS)
LOGPROBS = Area("completion logprobs", path=COMPLETIONS, fields=COMPLETION_FIELDS)
CHAT_LOGPROBS = Area("chat logprobs", path=CHAT, fields=CHAT_FIELDS, ignored=("bytes",))
"""Special tokens, which a random model writes, have no bytes."""

AREA.case("smallest", "Every client reads this answer.")
AREA.case("without a limit", "The limit is 16 tokens.", {"max_tokens": REMOVED})
AREA.variants(
    "A prompt has four forms.",
    {
        "texts": {"prompt": [SENTENCE, "Hi"]},
        "token ids": {"prompt": [10, 11, 12]},
        "lists of token ids": {"prompt": [[10, 11], [12]]},
        "no texts": {"prompt": []},
        "empty text": {"prompt": ""},
        "empty texts": {"prompt": ["", ""]},
        "an empty list of ids": {"prompt": [[]]},
        "absent": {"prompt": REMOVED},
        "null": {"prompt": None},
        "number": {"prompt": 5},
        "object": {"prompt": {"a": 1}},
        "mixed": {"prompt": ["Hi", 5]},
        "negative id": {"prompt": [-1]},
        "id out of vocabulary": {"prompt": [10**7]},
        "fractions": {"prompt": [1.5]},
        "booleans": {"prompt": [True]},
        "control characters": {"prompt": "a\x00b\x1fc"},
        "emoji": {"prompt": "🙂🙃"},
        "special token as text": {"prompt": "<|user|>"},
        "embeddings": {"prompt": REMOVED, "prompt_embeds": "AAAA"},
    },
    words=("out of vocabulary",),
)
AREA.case(
    "too long", "Agents read the numbers of this error.", {"prompt": LONG_TEXT}, words=CONTEXT_WORDS
)
AREA.case(
    "limit too high",
    "Agents read the numbers of this error.",
    {"max_tokens": 5000},
    words=CONTEXT_WORDS,
)
AREA.case("longest", "The whole context can be used.", {"prompt": [7] * 2047, "max_tokens": 1})
AREA.case("full", "No token is left.", {"prompt": [7] * 2048, "max_tokens": 1}, words=CONTEXT_WORDS)
AREA.sweep(
    "Limits, conversions and null are contract.",
    {
        "max_tokens": [0, -1, 1, "2", None],
        "n": [0, 2, 3],
        "echo": [True, "yes", None],
        "suffix": ["end", "", None],
        "best_of": [1, 3],
        "stop": [UNWRITTEN, [], [UNWRITTEN] * 5],
        "temperature": [-1, 0, 3],
        "seed": [7, "x"],
        "user": ["u"],
        "logit_bias": [{"5": 100}, {"5": 200}, {"70000": 1}],
        "truncate_prompt_tokens": [1, 3, -1, -5, 5000],
        "add_special_tokens": [False, None, "x"],
        "stream_options": [USAGE, {}, None],
        "response_format": [{"type": "text"}, {"type": "json_object"}, {"type": "what"}],
        "return_token_ids": [True],
        "return_token_offsets": [True],
        "prompt_logprobs": [0, 1, -1, -2, 30],
        "min_tokens": [4, 5],
        "model": ["none", REMOVED],
        "priority": [1],
        "cache_salt": ["t", ""],
        "request_id": ["mine"],
        "suffix_of_nothing": [1],
        "use_beam_search": [True],
        "return_weight_versions": [True],
    },
)
AREA.variants(
    "The order of chunks is contract.",
    {
        "stream": {"stream": True},
        "stream with usage": {"stream": True, "stream_options": USAGE},
        "stream with continuous usage": {
            "stream": True,
            "stream_options": {**USAGE, "continuous_usage_stats": True},
        },
        "stream of two choices": {"stream": True, "n": 2},
        "stream of two prompts": {"stream": True, "prompt": ["Hi", SENTENCE]},
        "stream with echo": {"stream": True, "echo": True},
        "stream with echo and no token": {"stream": True, "echo": True, "max_tokens": 0},
        "stream with token ids": {"stream": True, "return_token_ids": True},
        "stream with weight versions": {"stream": True, "return_weight_versions": True},
        "stream with log probabilities": {"stream": True, "logprobs": 1},
        "stream with beams": {"stream": True, "use_beam_search": True},
        "stream with prompt log probabilities": {"stream": True, "prompt_logprobs": 1},
        "stream that fails": {"stream": True, "prompt": LONG_TEXT},
        "stream by intervals": {"stream": True, "stream_interval": 3},
    },
)
AREA.variants(
    "Several prompts and choices are numbered.",
    {
        "two prompts with two choices": {"prompt": ["Hi", SENTENCE], "n": 2},
        "echo of two prompts": {"prompt": ["Hi", SENTENCE], "echo": True},
        "echo of ids": {"prompt": [10, 11], "echo": True},
        "echo without tokens": {"echo": True, "max_tokens": 0},
        "beams": {"use_beam_search": True, "n": 2, "temperature": 0},
        "beams with allowed ids": {"use_beam_search": True, "allowed_token_ids": [5]},
        "beams without tokens": {"use_beam_search": True, "max_tokens": 0},
    },
)
AREA.case("no model is required", "Null is as absent.", {"model": None, "prompt": "Hi"})

LOGPROBS.each("logprobs", "The number is limited.", [0, 1, 5, 20, 21, -1, "2", True, None])
LOGPROBS.variants(
    "Evaluation harnesses read log probabilities of prompts.",
    {
        "echo": {"echo": True, "logprobs": 1},
        "echo without tokens": {"echo": True, "logprobs": 1, "max_tokens": 0},
        "echo of ids": {"echo": True, "logprobs": 1, "prompt": [10, 11, 12]},
        "tokens as ids": {"logprobs": 1, "return_tokens_as_token_ids": True},
        "of chosen ids": {"logprob_token_ids": [5, 6]},
        "of chosen ids and more": {"logprobs": 2, "logprob_token_ids": [5, 6]},
        "two choices": {"logprobs": 1, "n": 2},
        "prompt": {"prompt_logprobs": 2},
        "prompt in a stream with echo": {"stream": True, "echo": True, "logprobs": 1},
        "greedy": {"logprobs": 1, "temperature": 0},
    },
)
WHOLE_LETTERS = {
    "structured_outputs": {"choice": ["red or blue"]},
    "max_tokens": 20,
    "ignore_eos": False,
}
"""A text without special tokens and parts of letters, whose chunks differ in shape."""
CHAT_LOGPROBS.each("logprobs", "The field is a boolean.", [True, False, 1, "x", 5, None])
CHAT_LOGPROBS.each(
    "top_logprobs", "It requires logprobs, and is limited.", [0, 2, 20, 21, -1, -2, "1", None]
)
CHAT_LOGPROBS.variants(
    "Clients read the alternatives of each token.",
    {
        "none": {"logprobs": True, "top_logprobs": 0},
        "two": {"logprobs": True, "top_logprobs": 2},
        "most": {"logprobs": True, "top_logprobs": 20},
        "too many": {"logprobs": True, "top_logprobs": 21},
        "all": {"logprobs": True, "top_logprobs": -1},
        "of chosen ids": {"logprobs": True, "logprob_token_ids": [5, 6]},
        "of chosen ids out of vocabulary": {"logprobs": True, "logprob_token_ids": [10**6]},
        "prompt": {"prompt_logprobs": 1},
        "prompt, all": {"prompt_logprobs": -1},
        "prompt, too many": {"prompt_logprobs": 21},
        "prompt, negative": {"prompt_logprobs": -2},
        "tokens as ids": {
            "logprobs": True,
            "top_logprobs": 1,
            "return_tokens_as_token_ids": True,
        },
        "two choices": {"logprobs": True, "n": 2},
        "streamed": {**WHOLE_LETTERS, "logprobs": True, "top_logprobs": 1, "stream": True},
        "streamed without alternatives": {**WHOLE_LETTERS, "logprobs": True, "stream": True},
    },
)
FIELDS = Area("completion fields", path=COMPLETIONS)
FIELDS.case("no fields", "Each missing field is named.")
FIELDS.case("only a model", "A prompt is required.", {"model": MODEL})
FIELDS.case("only a prompt", "The model is optional.", {"prompt": "Hi", "max_tokens": 1})
AREAS = (AREA, LOGPROBS, CHAT_LOGPROBS, FIELDS)
