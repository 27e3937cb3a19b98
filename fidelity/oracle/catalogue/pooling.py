"""Pooling models: embeddings, classes, scores and ranks."""

from fidelity.oracle.cases import MODEL, REMOVED, Area
from fidelity.oracle.catalogue.requests import (
    CHAT,
    CHAT_FIELDS,
    CONTEXT_WORDS,
    LONG_TEXT,
    QUESTION,
    SENTENCE,
)

FIELDS: dict[str, object] = {"model": MODEL, "input": SENTENCE}
EMBEDDINGS = Area("embeddings", path="/v1/embeddings", fields=FIELDS, configuration="embed")
POOLING = Area("pooling", path="/pooling", fields=FIELDS, configuration="embed")
SCORES = Area("scores", configuration="embed")
CLASSES = Area("classes", path="/classify", fields=FIELDS, configuration="classify")

Variants = dict[str, dict[str, object]]
SCORED: Variants = {
    "texts": {"text_1": "a", "text_2": "b"},
    "one and many": {"text_1": "a", "text_2": ["b", "c"]},
    "many and many": {"text_1": ["a", "d"], "text_2": ["b", "c"]},
    "many and one": {"text_1": ["a", "d"], "text_2": "b"},
    "unequal lists": {"text_1": ["a", "d"], "text_2": ["b", "c", "e"]},
    "queries and documents": {"queries": "a", "documents": ["b"]},
    "data": {"data_1": "a", "data_2": ["b"]},
    "empty list": {"text_1": "a", "text_2": []},
    "one text": {"text_1": "a"},
    "nothing": {},
    "unknown model": {"text_1": "a", "text_2": "b", "model": "none"},
}
RANKED: Variants = {
    "documents": {"query": "a", "documents": ["b", "c", "d"]},
    "top": {"query": "a", "documents": ["b", "c", "d"], "top_n": 1},
    "top of more": {"query": "a", "documents": ["b"], "top_n": 9},
    "negative top": {"query": "a", "documents": ["b"], "top_n": -1},
    "no documents": {"query": "a", "documents": []},
    "no query": {"documents": ["b"]},
    "objects": {"query": "a", "documents": [{"text": "b"}]},
}
COHERE: Variants = {
    "texts": {"texts": ["a", "b"], "input_type": "search_query"},
    "types": {"texts": ["a"], "embedding_types": ["float", "int8"], "input_type": "x"},
    "no texts": {"texts": []},
    "nothing": {},
    "dimension": {"texts": ["a"], "output_dimension": 2},
}
ROUTES: Variants = {
    CHAT: CHAT_FIELDS,
    "/v1/completions": {"model": MODEL, "prompt": "Hi"},
    "/v1/responses": {"model": MODEL, "input": "Hi"},
    "/v1/messages": {"model": MODEL, "max_tokens": 3, "messages": QUESTION},
    "/v1/embeddings": FIELDS,
    "/classify": FIELDS,
    "/v1/score": {"model": MODEL, "text_1": "a", "text_2": "b"},
    "/rerank": {"model": MODEL, "query": "a", "documents": ["b"]},
    "/tokenize": {"model": MODEL, "prompt": "Hi"},
    "/invocations": FIELDS,
}

EMBEDDINGS.each(
    "input",
    "An input has many forms.",
    [
        SENTENCE,
        [SENTENCE, "Hi"],
        [10, 11],
        [[10, 11], [12]],
        "",
        [],
        [""],
        None,
        REMOVED,
        5,
        [-1],
        [10**7],
        ["a", 5],
        {"a": 1},
        QUESTION,
    ],
)
EMBEDDINGS.sweep(
    "Limits, conversions and null are contract.",
    {
        "encoding_format": ["float", "base64", "bytes", "bytes_only", "hex", None],
        "embed_dtype": ["float32", "float16", "bfloat16", "int3"],
        "endianness": ["native", "big", "middle"],
        "dimensions": [0, 2, 128, 4096, "x", None],
        "truncate_prompt_tokens": [-1, 1, 5, -2, 5000],
        "truncation_side": ["left", "right", "x"],
        "add_special_tokens": [False],
        "use_activation": [False, True],
        "normalize": [False],
        "model": ["none", REMOVED],
        "user": ["u"],
        "priority": [0, 1],
        "request_id": ["mine"],
        "cache_salt": ["t", ""],
        "padding": ["do_not_pad", "max_length", "x"],
        "unknown": [1],
    },
)
EMBEDDINGS.case("too long", "Agents read this.", {"input": LONG_TEXT}, words=CONTEXT_WORDS)
EMBEDDINGS.case("conversation", "Chats can be embedded.", {"input": REMOVED, "messages": QUESTION})
EMBEDDINGS.case("both", "They exclude each other.", {"messages": QUESTION})
EMBEDDINGS.case("twice", "The second input comes from the cache or not.")
POOLING.each(
    "task", "The tasks are a fixed list.", ["embed", "classify", "token_embed", "what", None]
)
POOLING.each("input", "An input has many forms.", [SENTENCE, ["a", "b"], [10], None, ""])
POOLING.each("encoding_format", "Encodings.", ["float", "base64", "bytes", "bytes_only", "x"])
for path in ("/score", "/v1/score"):
    for name, fields in SCORED.items():
        SCORES.case(
            f"{path} {name}", "Scores compare texts.", path=path, body={"model": MODEL, **fields}
        )
for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
    for name, fields in RANKED.items():
        SCORES.case(
            f"{path} {name}",
            "Ranks sort documents.",
            path=path,
            body={"model": MODEL, **fields},
            ignored=("text", "index"),
        )
for name, fields in COHERE.items():
    SCORES.case(
        f"/v2/embed {name}", "Cohere's form.", path="/v2/embed", body={"model": MODEL, **fields}
    )
CLASSES.each("input", "An input has many forms.", [SENTENCE, ["a", "b"], [10, 11], "", [], None, 5])
CLASSES.each("use_activation", "Probabilities or logits.", [True, False, None])
CLASSES.each("model", "404.", ["none", REMOVED])
CLASSES.case("conversation", "Chats have classes.", {"input": REMOVED, "messages": QUESTION})
CLASSES.case("too long", "Agents read this.", {"input": LONG_TEXT}, words=CONTEXT_WORDS)
for configuration, area in (("embed", POOLING), ("classify", CLASSES)):
    for path, body in ROUTES.items():
        area.case(
            f"POST {path} of {configuration}", "Routes depend on the task.", path=path, body=body
        )
    area.get("/v1/models", "The list of a pooling model.")
    area.get("/metrics", "Families of a pooling model.")
AREAS = (EMBEDDINGS, POOLING, SCORES, CLASSES)
