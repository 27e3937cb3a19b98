"""Which routes a task has, what they take, how vLLM 0.32 refuses the rest, and what they answer."""

import itertools
import json
import math
import re
import struct
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import gevent
import pytest

from app.core.application import create_app
from app.core.base.clock import pause
from app.core.base.overload import MemoryFullError
from app.core.protocol.decoding import Request, decode
from app.core.server.http.errors import ApiError
from app.core.settings import settings_type
from app.extensions.pooling import runner
from app.extensions.pooling.paths import TASK_PATHS, served_paths
from app.extensions.pooling.protocol import (
    ClassificationRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from app.extensions.pooling.routes import task_instructions
from app.extensions.pooling.runner import FLOAT_BYTES, WRITTEN_BYTES, PoolingRunner
from config.settings import ModelSettings
from tests.application import app_of, cache_sizes, check_caches
from tests.conformance.calls import CHAT, TEXT, USAGE_KEYS
from tests.extensions.pooling.calls import (
    BASE,
    CLASSIFY,
    COHERE,
    DIMENSIONS,
    EMBED,
    MESSAGES,
    POOL,
    RERANK,
    SCORE,
    call,
    client_of,
    refused,
    scores,
    token_ids,
    vectors,
)

TEXT_KINDS = (EmbeddingRequest, PoolingRequest, ClassificationRequest)
SEVERAL: list[dict[str, Any]] = [
    {"messages": [MESSAGES, MESSAGES]},
    {"input": [MESSAGES, MESSAGES]},
    {"input": [MESSAGES, MESSAGES], "messages": None},
]
REFUSED: list[tuple[type[Request], dict[str, Any], str]] = [
    *(
        case
        for kind in TEXT_KINDS
        for case in (
            (kind, {}, "body.input"),
            (kind, {"input": 5}, "body.input"),
            (kind, {"input": ["a", 1]}, "body.input.0"),
            (kind, {"messages": [{"role": "user", "content": 5}]}, "body.input"),
            (kind, {"input": "a", "truncate_prompt_tokens": -2}, "body.truncate_prompt_tokens"),
        )
    ),
    (ScoreRequest, {}, "body.queries"),
    (ScoreRequest, {"text_1": "a", "text_2": 5}, "body.queries"),
    (ScoreRequest, {"queries": "a"}, "body.documents"),
    (ScoreRequest, {"queries": "a", "documents": {"content": "x"}}, "body.documents"),
    (
        ScoreRequest,
        {"queries": "a", "documents": {"content": [{"type": "text"}]}},
        "body.documents",
    ),
    (RerankRequest, {}, "body.query"),
    (RerankRequest, {"query": "a", "documents": 5}, "body.documents"),
    (RerankRequest, {"query": {"content": "no list"}, "documents": ["a"]}, "body.query"),
    (
        RerankRequest,
        {"query": {"content": [{"type": "smell", "smell": "x"}]}, "documents": []},
        "body.query",
    ),
    *(
        (RerankRequest, {"query": "a", "documents": documents}, "body.documents")
        for documents in ({}, ["b", None], [{"content": [{"type": "text", "text": 5}]}])
    ),
    (RerankRequest, {"query": "a", "documents": ["b"], "top_n": -1}, "body.top_n"),
]
PATHS = TASK_PATHS["pooling"]
LONG = "a " * 65
RULES: list[tuple[str, dict[str, Any], str | None]] = [
    (EMBED, {"input": ""}, None),
    (EMBED, {"input": [-1]}, None),
    (EMBED, {"input": ["a", LONG]}, "input_tokens"),
    (EMBED, {"input": "a" * 100_000}, "input_text"),
    (EMBED, {"dimensions": 0}, None),
    (EMBED, {"input": ["a"] * 65, "dimensions": 65_536}, None),
    (EMBED, {"input": ["a"] * 65_537}, "input"),
    (EMBED, {"messages": MESSAGES, "chat_template": "x"}, None),
    (EMBED, {"media_io_kwargs": {"image": {}}}, "media_io_kwargs"),
    (POOL, {"dimensions": 5}, "dimensions"),
    (POOL, {"input": None, "data": {"image": 1}}, "task"),
    (CLASSIFY, {"input": LONG}, "input_tokens"),
    (SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, None),
    (SCORE, {"text_2": {"content": [{"type": "text", "text": "a"}]}}, None),
    (SCORE, {"text_2": LONG}, "input_tokens"),
    (SCORE, {"max_tokens_per_query": 64}, None),
    (RERANK, {"documents": []}, None),
    (RERANK, {"documents": ["a"] * 65_537}, "documents"),
    (RERANK, {"query": LONG}, "input_tokens"),
    *((path, {"truncate_prompt_tokens": count}, None) for path in BASE for count in (0, 65)),
    *((path, {"mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs") for path in BASE),
    *((path, {"cache_salt": "a@b"}, "cache_salt") for path in BASE),
]
BAD = "Bad Request"
RULE = "BadRequestError"
COHERE_FLAGS = ("--task=embed", "--force-dummy-tokenizer")


def test_memory_report_contains_the_size_of_the_cache_for_embedded_texts() -> None:
    app = app_of("--task=embed")
    sizes_before = check_caches(app, {"embeddings"})["embeddings"]
    client = app.test_client()
    for _ in range(2):  # places are remembered from their second use
        assert client.post("/v1/embeddings", json={"input": "a fox"}).status_code == 200
    assert cache_sizes(app)["embeddings"]["size_bytes"] > sizes_before["size_bytes"] == 0


def test_request_without_room_for_its_answer_is_rejected_before_its_texts_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims: list[int] = []
    reads: list[None] = []

    def claim(size_bytes: int) -> None:
        claims.append(size_bytes)
        raise MemoryFullError("no room")

    monkeypatch.setattr(runner, "claim_memory", claim)
    monkeypatch.setattr(PoolingRunner, "_encode_inputs", lambda *arguments: reads.append(None))
    client = app_of("--task=embed").test_client()

    answer = client.post("/v1/embeddings", json={"input": ["a fox", "a dog"]})

    assert answer.status_code == 503
    assert claims and claims[0] > 0 and not reads


def test_memory_of_the_numbers_of_an_answer_is_claimed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims: list[int] = []
    monkeypatch.setattr(runner, "claim_memory", claims.append)
    client = app_of("--task=embed").test_client()

    answer = client.post("/v1/embeddings", json={"input": ["a fox", "a dog"]})

    numbers = sum(len(item["embedding"]) for item in answer.get_json()["data"])
    assert sum(claims) == numbers * (FLOAT_BYTES + WRITTEN_BYTES)


def decoded(kind: type[Request], **body: Any) -> Any:
    return decode(json.dumps(body).encode(), "application/json", kind)


def test_other_requests_run_between_the_conversations_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    now_s = itertools.count()
    monkeypatch.setattr(pause, "pause", lambda: pauses.append(None))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now_s)))
    conversations = [[{"role": "user", "content": "a"}] * 2] * 100

    request = gevent.spawn(lambda: decoded(EmbeddingRequest, messages=conversations)).get()

    assert request.conversations == conversations
    # One pause behind each message, and one behind each conversation.
    assert len(pauses) >= 3 * len(conversations)


@pytest.mark.parametrize("kind", TEXT_KINDS)
@pytest.mark.parametrize(
    ("value", "texts", "id_lists"),
    [
        ("a", ["a"], []),
        (["a", "b"], ["a", "b"], []),
        ([1, 2], [], [[1, 2]]),
        ([[1], [2, 3]], [], [[1], [2, 3]]),
        ([1.0, "2", True], [], [[1, 2, 1]]),
    ],
)
def test_input_may_be_texts_or_token_ids_alone_or_in_a_list(
    kind: type[Request], value: Any, texts: list[str], id_lists: list[list[int]]
) -> None:
    for extra in ({}, {"priority": "1"}):  # the second is decoded the lax way
        parsed = decoded(kind, input=value, **extra)
        assert (parsed.texts, parsed.id_lists, parsed.conversations) == (texts, id_lists, [])
        assert parsed.add_special_tokens is True


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_messages_take_precedence_over_input(kind: type[Request]) -> None:
    for extra in ({}, {"input": "a"}, {"input": 5}, {"input": MESSAGES, "priority": "1"}):
        parsed = decoded(kind, messages=MESSAGES, **extra)
        assert (parsed.conversations, parsed.texts) == ([MESSAGES], [])
        assert (parsed.add_special_tokens, parsed.add_generation_prompt) == (False, False)


def test_only_embedding_requests_may_contain_several_conversations() -> None:
    for body in SEVERAL:
        assert decoded(EmbeddingRequest, **body).conversations == [MESSAGES, MESSAGES]
        with pytest.raises(ApiError) as caught:
            decoded(PoolingRequest, **body)
        assert (caught.value.status, caught.value.type) == (400, "Bad Request")


def test_score_inputs_are_accepted_under_four_pairs_of_names() -> None:
    for names in (
        ("queries", "documents"),
        ("queries", "items"),
        ("data_1", "data_2"),
        ("text_1", "text_2"),
    ):
        for extra in ({}, {"priority": "1"}):
            parsed = decoded(ScoreRequest, **{names[0]: "a", names[1]: ["b", "c"]}, **extra)
            assert (parsed.queries, parsed.documents) == ("a", ["b", "c"])


def test_wrong_type_returns_400_with_the_path_of_the_field() -> None:
    for kind, body, param in REFUSED:
        with pytest.raises(ApiError) as caught:
            decoded(kind, **body)
        error = caught.value
        assert (error.status, error.type, error.param) == (400, "Bad Request", param), (kind, body)


@pytest.mark.parametrize(
    ("task", "settings", "expected"),
    [
        ("pooling", {}, set(TASK_PATHS["pooling"])),
        ("score", {}, set(TASK_PATHS["score"])),
        ("classify", {}, {POOL, CLASSIFY}),
        ("generate", {}, {CHAT, TEXT}),
        ("embed", {"mm_encoder_only": True}, set(TASK_PATHS["embed"]) - {EMBED, COHERE}),
    ],
)
def test_each_pooling_task_has_the_same_routes_as_in_vllm(
    task: str, settings: dict[str, bool], expected: set[str]
) -> None:
    client = create_app(settings_type()(model=ModelSettings(task=task, **settings))).test_client()
    answers = {path: client.post(path, json={}) for path in (*PATHS, CHAT, TEXT)}
    assert {path for path, answer in answers.items() if answer.status_code != 404} == expected
    assert all(answers[path].json == {"detail": "Not Found"} for path in answers.keys() - expected)


def test_setting_for_embeddings_with_chat_adds_the_embeddings_route() -> None:
    """As llm-d-inference-sim has them; the reply of a chat is none the shorter for it."""
    model = ModelSettings(embeddings_with_chat=True)
    assert served_paths(model) == (EMBED,)
    client = create_app(settings_type()(model=model)).test_client()
    answer = client.post(EMBED, json=BASE[EMBED])
    assert answer.status_code == 200 and answer.json["usage"]["completion_tokens"] == 0
    chat = client.post(
        CHAT, json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    )
    assert chat.json["usage"]["completion_tokens"] == 3
    assert client.post(POOL, json=BASE[POOL]).status_code == 404


@pytest.mark.parametrize(("path", "fields", "param"), RULES)
def test_invalid_pooling_field_value_returns_a_bad_request_error(
    path: str, fields: dict[str, Any], param: str | None
) -> None:
    refusal = refused(path, {**BASE[path], **fields}, "--task=pooling")
    assert refusal == (400, "BadRequestError", param)


def test_cross_encoder_rejects_a_pair_of_texts_that_exceeds_the_context() -> None:
    body = {"text_1": "a " * 40, "text_2": "a " * 40}
    assert client_of("--task=pooling").post(SCORE, json=body).status_code == 200
    assert refused(SCORE, body, "--task=score") == (400, "BadRequestError", "input_tokens")


@pytest.mark.parametrize("path", BASE)
def test_unknown_model_returns_404(path: str) -> None:
    body = {**BASE[path], "model": "nope"}
    assert refused(path, body, "--task=pooling") == (404, "NotFoundError", None)


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ("{}", 200),
        ('{"hidden_size": 8}', 400),
        ('{"is_matryoshka": true}', 200),
        ('{"matryoshka_dimensions": [4]}', 200),
    ],
)
def test_dimensions_are_rejected_unless_the_model_supports_them(
    tmp_path: Path, config: str, status: int
) -> None:
    (tmp_path / "config.json").write_text(config)
    client = client_of("--task=embed", f"--model={tmp_path}", "--force-dummy-tokenizer")
    assert client.post(EMBED, json={**BASE[EMBED], "dimensions": 4}).status_code == status
    assert client.post(EMBED, json=BASE[EMBED]).status_code == 200


def test_texts_and_token_ids_alone_or_in_a_list_give_the_same_vectors() -> None:
    texts = ["hello", "Zwölf Boxkämpfer 🥊", "世界", "hello"]
    ids = [token_ids(text) for text in texts]
    wanted = vectors(texts)
    assert wanted == vectors(ids)
    assert (
        wanted
        == [vectors(text)[0] for text in texts]
        == [vectors(ids_of_text)[0] for ids_of_text in ids]
    )
    assert wanted[0] == wanted[3] != wanted[1]
    assert {len(vector) for vector in wanted} == {DIMENSIONS}


def test_conversation_is_embedded_like_its_prompt() -> None:
    prompt = call("/tokenize", messages=MESSAGES, add_generation_prompt=False)["tokens"]
    answer = call(EMBED, messages=MESSAGES)
    assert [item["embedding"] for item in answer["data"]] == vectors(prompt)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    several = call(EMBED, messages=[MESSAGES, MESSAGES])["data"]
    assert [item["embedding"] for item in several] == vectors([prompt, prompt])


def test_input_beyond_the_context_is_truncated_on_request() -> None:
    assert call(EMBED, input=[1] * 64)["usage"]["prompt_tokens"] == 64
    for keep, used in ((-1, 64), (5, 5), (64, 64)):
        body = {"input": [list(range(100)), [7]], "truncate_prompt_tokens": keep}
        assert call(EMBED, **body)["usage"]["prompt_tokens"] == used + 1
    (begin,) = vectors(list(range(100)), truncate_prompt_tokens=3)
    (end,) = vectors(list(range(100)), truncate_prompt_tokens=3, truncation_side="left")
    assert [begin, end] == vectors([[0, 1, 2], [97, 98, 99]])


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("float32", 4), ("float16", 2), ("bfloat16", 2), ("fp8_e4m3", 1), ("fp8_e5m2", 1)],
)
def test_bytes_only_format_omits_the_metadata_header(dtype: str, size: int) -> None:
    body = {"input": ["hello", "world"], "embed_dtype": dtype, "endianness": "big"}
    client = client_of("--task=pooling")
    got, alone = (
        client.post(EMBED, json={**body, "encoding_format": f"bytes{end}"}) for end in ("", "_only")
    )
    assert (
        got.headers["Content-Type"] == alone.headers["Content-Type"] == "application/octet-stream"
    )
    assert got.data == alone.data and "metadata" not in alone.headers
    meta = json.loads(got.headers["metadata"])
    tokens = sum(len(token_ids(text)) for text in ("hello", "world"))
    assert list(meta) == ["id", "created", "model", "data", "usage"]
    assert meta["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    width = DIMENSIONS * size
    same = {"embed_dtype": dtype, "endianness": "big", "shape": [DIMENSIONS]}
    assert meta["data"] == [
        {"index": 0, "start": 0, "end": width, **same},
        {"index": 1, "start": width, "end": 2 * width, **same},
    ]
    in_json = call(EMBED, **body, encoding_format="base64")["data"]
    assert got.data == b"".join(b64decode(item["embedding"]) for item in in_json)


@pytest.mark.parametrize(
    ("task", "shape"),
    [
        (None, (16,)),
        ("embed", (16,)),
        ("classify", (2,)),
        ("token_embed", (3, 16)),
        ("token_classify", (3, 2)),
    ],
)
def test_pooling_output_of_each_task_has_the_dimensions_of_that_task(
    task: str | None, shape: tuple[int, ...]
) -> None:
    body = {"input": [1, 2, 3], "task": task}
    client = client_of("--task=pooling")
    (item,) = client.post(POOL, json=body).get_json()["data"]
    rows = item["data"] if len(shape) > 1 else [item["data"]]
    assert (len(rows), {len(row) for row in rows}) == (
        shape[0] if len(shape) > 1 else 1,
        {shape[-1]},
    )
    got = client.post(POOL, json={**body, "encoding_format": "bytes"})
    assert tuple(json.loads(got.headers["metadata"])["data"][0]["shape"]) == shape
    numbers = struct.unpack(f"<{math.prod(shape)}f", got.data)
    assert list(numbers) == [number for row in rows for number in row]


def test_model_rejects_tasks_that_it_does_not_support() -> None:
    assert len(call(POOL, "score", **BASE[POOL])["data"][0]["data"]) == 1
    answer = client_of("--task=classify").post(POOL, json={**BASE[POOL], "task": "classify"})
    assert len(answer.get_json()["data"][0]["data"]) == 2
    for task in ("embed", "token_classify", "plugin"):
        assert refused(POOL, {**BASE[POOL], "task": task}, "--task=classify")[::2] == (400, "task")


def test_class_probabilities_add_up_to_one() -> None:
    items = call(CLASSIFY, input=["hello", "world", "hello"])["data"]
    assert [item["index"] for item in items] == [0, 1, 2]
    for item in items:
        assert (len(item["probs"]), item["num_classes"]) == (2, 2)
        assert sum(item["probs"]) == pytest.approx(1)
        assert item["label"] == f"LABEL_{item['probs'].index(max(item['probs']))}"
    assert items[0]["probs"] == items[2]["probs"] != items[1]["probs"]
    (logits,) = call(CLASSIFY, input="hello", use_activation=False)["data"]
    assert logits["label"] == items[0]["label"] and sum(logits["probs"]) != pytest.approx(1)
    (single,) = call(CLASSIFY, "score", input="hello")["data"]
    assert (single["label"], single["num_classes"]) == ("LABEL_0", 1)


@pytest.mark.parametrize("path", [SCORE, "/v1/score"])
def test_score_rises_with_the_number_of_common_tokens(path: str) -> None:
    documents = ["red fox jumps", "red fox sleeps", "red cats sleep", "blue whales sing"]
    values = [
        item["score"] for item in call(path, queries="red fox jumps", documents=documents)["data"]
    ]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 4 and all(0 < value < 1 for value in values)


def test_texts_are_scored_one_against_many_or_in_pairs() -> None:
    equal, different = scores(text_1="a b", text_2=["a b", "c d"])
    assert scores(text_1=["a b", "a b"], text_2=["a b", "c d"]) == [equal, different]
    assert scores(text_1="a b", text_2="c d") == scores(data_1="c d", data_2="a b") == [different]
    (logit,) = scores(queries="a b", items="c d", use_activation=False)
    assert 1 / (1 + math.exp(-logit)) == pytest.approx(different)


def test_cross_encoder_counts_the_query_tokens_once_per_document() -> None:
    body = {"query": "hello", "documents": ["world", "hello world"]}
    query, *documents = (len(token_ids(text)) for text in ("hello", "world", "hello world"))
    assert call(RERANK, **body)["usage"]["prompt_tokens"] == query + sum(documents)
    assert call(RERANK, "score", **body)["usage"]["prompt_tokens"] == 2 * query + sum(documents)


def test_cross_encoder_metrics_count_one_prompt_per_pair_of_texts() -> None:
    def counted() -> float:
        lines = client_of("--task=score").get("/metrics").text.splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith("vllm:request_prompt_tokens_count")
        )

    count_before = counted()
    call(RERANK, "score", query="a", documents=["b", "c", "d"])
    assert counted() == count_before + 3


@pytest.mark.parametrize("path", [RERANK, "/v1/rerank", "/v2/rerank"])
def test_rerank_results_are_sorted_and_keep_the_document_indices(path: str) -> None:
    documents = ["blue whales", "red fox", "red cats", "blue whales"]
    results = call(path, query="red fox", documents=documents)["results"]
    assert [result["index"] for result in results] == [1, 2, 0, 3]
    assert [result["document"]["text"] for result in results] == [
        documents[i] for i in (1, 2, 0, 3)
    ]
    values = [result["relevance_score"] for result in results]
    assert values == scores(text_1="red fox", text_2=[documents[i] for i in (1, 2, 0, 3)])
    for top_n, count in ((0, 4), (2, 2), (99, 4)):
        assert (
            call(path, query="red fox", documents=documents, top_n=top_n)["results"]
            == results[:count]
        )


@pytest.mark.parametrize(
    ("path", "prefix", "keys"),
    [
        (EMBED, "embd", ["index", "object", "embedding"]),
        (POOL, "pooling", ["index", "object", "data"]),
        (CLASSIFY, "classify", ["index", "label", "probs", "num_classes"]),
        (SCORE, "score", ["index", "object", "score"]),
    ],
)
def test_embedding_list_has_the_keys_of_vllm_in_the_same_order(
    path: str, prefix: str, keys: list[str]
) -> None:
    answer = json.loads(client_of("--task=pooling").post(path, json=BASE[path]).data)
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert answer["id"].startswith(prefix + "-")
    assert [list(item) for item in answer["data"]] == [keys]
    assert list(answer["usage"]) == USAGE_KEYS
    tokens = answer["usage"]["prompt_tokens"]
    assert list(answer["usage"].values()) == [tokens, tokens, 0, None, None]


def test_rerank_response_has_the_keys_of_vllm_in_the_same_order() -> None:
    answer = call(RERANK, **BASE[RERANK])
    assert list(answer) == ["id", "model", "usage", "results"]
    assert list(answer["usage"]) == ["prompt_tokens", "total_tokens"]
    (result,) = answer["results"]
    assert list(result) == ["index", "document", "relevance_score"]
    assert result["document"] == {"text": "world", "multi_modal": None}
    assert answer["id"].startswith("score-")


def embedded(*flags: str, **body: object) -> Any:
    answer = client_of(*COHERE_FLAGS, *flags).post(COHERE, json=body)
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def test_all_cohere_embedding_types_encode_the_same_vector() -> None:
    kinds = ["float", "base64", "binary", "ubinary"]
    answer = embedded(texts=["hello", "world"], embedding_types=kinds)
    assert list(answer) == ["id", "embeddings", "texts", "meta", "response_type"]
    assert answer["texts"] == ["hello", "world"] and answer["response_type"] == "embeddings_by_type"
    usual = (
        client_of(*COHERE_FLAGS)
        .post("/v1/embeddings", json={"input": ["hello", "world"]})
        .get_json()
    )
    for index, item in enumerate(usual["data"]):
        vector = item["embedding"]
        assert answer["embeddings"]["float"][index] == vector
        assert (
            list(struct.unpack("<16f", b64decode(answer["embeddings"]["base64"][index]))) == vector
        )
        signs = "".join("1" if number >= 0 else "0" for number in vector)
        packed = [int(signs[:8], 2), int(signs[8:], 2)]
        assert answer["embeddings"]["ubinary"][index] == packed
        assert answer["embeddings"]["binary"][index] == [byte - 128 for byte in packed]
    units = {"input_tokens": usual["usage"]["prompt_tokens"], "image_tokens": 0}
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": units}


def test_cohere_inputs_with_content_parts_are_embedded_as_conversations() -> None:
    mixed = {"content": [{"type": "text", "text": "hello"}]}
    answer = embedded(inputs=[mixed], output_dimension=8)
    assert "texts" not in answer and list(answer["embeddings"]) == ["float"]
    assert len(answer["embeddings"]["float"][0]) == 8


@pytest.mark.parametrize(("truncate", "same"), [("END", "a b"), ("START", "c d")])
def test_long_text_is_truncated_on_the_requested_side(truncate: str, same: str) -> None:
    token_count = embedded(texts=[same])["meta"]["billed_units"]["input_tokens"]
    answer = embedded(texts=["a b c d"], truncate=truncate, max_tokens=token_count)
    assert answer["meta"]["billed_units"]["input_tokens"] == token_count
    assert embedded(texts=["word " * 100])["meta"]["billed_units"]["input_tokens"] == 64


def test_embedding_input_types_are_read_from_the_model_folder(
    tmp_path: Path,
) -> None:
    prompts = {"prompts": {"search_query": "Find: ", "none": ""}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert task_instructions(tmp_path) == prompts["prompts"]
    assert task_instructions(tmp_path / "missing") is None
    model_flag = f"--model={tmp_path}"
    plain = embedded(model_flag, texts=["cat"])["meta"]["billed_units"]["input_tokens"]
    assert (
        embedded(model_flag, texts=["cat"], input_type="none")["meta"]["billed_units"][
            "input_tokens"
        ]
        == plain
    )
    longer = embedded(model_flag, texts=["cat"], input_type="search_query")["meta"]["billed_units"]
    assert longer["input_tokens"] > plain
    assert (
        refused(COHERE, {"texts": ["cat"], "input_type": "other"}, *COHERE_FLAGS, model_flag)[0]
        == 400
    )
    assert embedded(texts=["cat"], input_type="search_document")["texts"] == ["cat"]


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        ({}, BAD, "body"),
        ({"texts": ["a"], "images": ["data:"]}, BAD, "body"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, BAD, "body.truncate"),
        ({"inputs": [{"content": [{"type": "text"}]}]}, BAD, "body.inputs.0.content.0"),
        ({"texts": ["a b c d"], "truncate": "NONE", "max_tokens": 1}, RULE, None),
        ({"texts": ["a"], "output_dimension": 9, "embedding_types": ["binary"]}, RULE, None),
    ],
)
def test_invalid_cohere_requests_are_rejected(body: object, kind: str, param: str | None) -> None:
    assert refused(COHERE, body, *COHERE_FLAGS) == (400, kind, param)
    assert refused(COHERE, {"texts": ["a"], "model": "other"}, *COHERE_FLAGS)[0] == 404


@pytest.mark.parametrize(
    ("flags", "task", "words"),
    [
        (("--task", "embed"), "classify", "Unsupported task: 'classify'"),
        (("--task", "embed"), "token_embed", "Try switching the model's pooling_task via"),
        (("--task", "score"), "embed", "Unsupported task: 'embed'"),
        (("--task", "classify"), "token_classify", "Try switching the model's pooling_task via"),
        (("--pooling-task", "token_embed"), "embed", "Try switching the model's pooling_task via"),
        (("--pooling-task", "token_embed"), "classify", "Unsupported task: 'classify'"),
        (("--pooling-task", "token_classify"), "embed", "Unsupported task: 'embed'"),
        (("--task", "pooling"), "plugin", "No IOProcessor plugin installed."),
    ],
)
def test_pooling_model_rejects_a_task_that_is_not_served(
    flags: tuple[str, ...], task: str, words: str
) -> None:
    client = client_of("--task", "pooling", *flags)
    answer = client.post("/pooling", json={"input": "a", "task": task})
    assert answer.status_code == 400
    assert answer.json["error"]["type"] == "BadRequestError"
    assert answer.json["error"]["message"].startswith(words)


def test_pooling_task_setting_sets_the_default_task() -> None:
    client = client_of("--task", "pooling", "--pooling-task", "token_embed")
    answer = client.post("/pooling", json={"input": [1, 2, 3]})
    assert len(answer.json["data"][0]["data"]) == 3


def test_model_without_files_rejects_an_unknown_cohere_input_type() -> None:
    assert refused(COHERE, {"texts": ["cat"], "input_type": "other"}, *COHERE_FLAGS)[0] == 400


@pytest.mark.parametrize(
    ("path", "body", "kinds"),
    [
        (
            RERANK,
            {"query": 7, "documents": "d"},
            ["string_type body.query", "dict_type body.query.ScoreMultiModalParam"],
        ),
        (
            RERANK,
            {"query": "q", "documents": 7},
            [
                "string_type body.documents",
                "dict_type body.documents.ScoreMultiModalParam",
                "list_type body.documents",
            ],
        ),
        (
            RERANK,
            {"query": "q", "documents": ["d", {}]},
            [
                "string_type body.documents",
                "dict_type body.documents.ScoreMultiModalParam",
                "string_type body.documents.1",
                "missing body.documents.1.ScoreMultiModalParam.content",
            ],
        ),
        (
            SCORE,
            {"data_2": "d"},
            [
                *("missing body.queries", "missing body.documents", "missing body.queries"),
                *("missing body.items", "missing body.data_1"),
                *("missing body.text_1", "missing body.text_2"),
            ],
        ),
    ],
)
def test_inputs_that_fit_no_type_have_the_errors_of_all_types(
    path: str, body: dict[str, Any], kinds: list[str]
) -> None:
    error = client_of("--task=pooling").post(path, json=body).get_json()["error"]
    found = re.findall(r"'type': '(\w+)', 'loc': '([\w.]+)'", error["message"])
    assert [" ".join(pair) for pair in found] == kinds
    assert error["message"].startswith(f"{len(kinds)} validation errors:\n")
    assert error["param"] == kinds[0].split()[1]


def test_invalid_documents_are_counted_up_to_a_limit() -> None:
    body = {"query": "q", "documents": [7] * 100_000}
    answer = client_of("--task=pooling").post(RERANK, json=body)
    message = answer.get_json()["error"]["message"]
    assert re.match(r"\d{4} validation errors:\n", message)
    assert message.count("'type':") == 10
