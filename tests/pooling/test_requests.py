"""Which routes a task has, what they take, and how vLLM 0.32 refuses the rest: status, type and param."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.serving.api.pooling import COHERE, ROUTES, served_routes
from app.serving.http.errors import ApiError
from app.serving.protocol.decoding import Request, decode
from app.serving.protocol.pooling import (
    ClassificationRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)
from app.wiring.factory import create_app
from config.settings import ModelSettings, Settings
from tests.conformance.calls import CHAT, TEXT
from tests.pooling.calls import BASE, CLASSIFY, EMBED, MESSAGES, POOL, RERANK, SCORE, client_of, refused

TEXT_KINDS = (EmbeddingRequest, PoolingRequest, ClassificationRequest)


def decoded(kind: type[Request], **body: Any) -> Any:
    return decode(json.dumps(body).encode(), "application/json", kind)


@pytest.mark.parametrize("kind", TEXT_KINDS)
@pytest.mark.parametrize(
    ("given", "texts", "id_lists"),
    [
        ("a", ["a"], []),
        (["a", "b"], ["a", "b"], []),
        ([1, 2], [], [[1, 2]]),
        ([[1], [2, 3]], [], [[1], [2, 3]]),
        ([1.0, "2", True], [], [[1, 2, 1]]),
    ],
)
def test_input_comes_in_four_forms(
    kind: type[Request], given: Any, texts: list[str], id_lists: list[list[int]]
) -> None:
    for more in ({}, {"priority": "1"}):  # the second is decoded the lax way
        asked = decoded(kind, input=given, **more)
        assert (asked.texts, asked.id_lists, asked.conversations) == (texts, id_lists, [])
        assert asked.add_special_tokens is True


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_messages_are_one_conversation_and_win_over_input(kind: type[Request]) -> None:
    for more in ({}, {"input": "a"}, {"input": 5}, {"input": MESSAGES, "priority": "1"}):
        asked = decoded(kind, messages=MESSAGES, **more)
        assert (asked.conversations, asked.texts) == ([MESSAGES], [])
        assert (asked.add_special_tokens, asked.add_generation_prompt) == (False, False)


SEVERAL: list[dict[str, Any]] = [
    {"messages": [MESSAGES, MESSAGES]},
    {"input": [MESSAGES, MESSAGES]},
    {"input": [MESSAGES, MESSAGES], "messages": None},
]


def test_embeddings_alone_take_several_conversations() -> None:
    for body in SEVERAL:
        assert decoded(EmbeddingRequest, **body).conversations == [MESSAGES, MESSAGES]
        with pytest.raises(ApiError) as caught:
            decoded(PoolingRequest, **body)
        assert (caught.value.status, caught.value.type) == (400, "Bad Request")


def test_the_sides_of_a_score_have_four_pairs_of_names() -> None:
    for names in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")):
        for more in ({}, {"priority": "1"}):
            asked = decoded(ScoreRequest, **{names[0]: "a", names[1]: ["b", "c"]}, **more)
            assert (asked.queries, asked.documents) == ("a", ["b", "c"])


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
    (ScoreRequest, {"queries": "a", "documents": {"content": [{"type": "text"}]}}, "body.documents"),
    (RerankRequest, {}, "body.query"),
    (RerankRequest, {"query": "a", "documents": 5}, "body.documents"),
    (RerankRequest, {"query": {"content": "no list"}, "documents": ["a"]}, "body.query"),
    (RerankRequest, {"query": {"content": [{"type": "smell", "smell": "x"}]}, "documents": []}, "body.query"),
    *(
        (RerankRequest, {"query": "a", "documents": documents}, "body.documents")
        for documents in ({}, ["b", None], [{"content": [{"type": "text", "text": 5}]}])
    ),
    (RerankRequest, {"query": "a", "documents": ["b"], "top_n": -1}, "body.top_n"),
]


def test_a_wrong_type_is_a_bad_request_with_its_path() -> None:
    for kind, body, param in REFUSED:
        with pytest.raises(ApiError) as caught:
            decoded(kind, **body)
        error = caught.value
        assert (error.status, error.type, error.param) == (400, "Bad Request", param), (kind, body)


PATHS = ROUTES["pooling"]


@pytest.mark.parametrize(
    ("task", "more", "expected"),
    [
        ("pooling", {}, set(ROUTES["pooling"])),
        ("score", {}, set(ROUTES["score"])),
        ("classify", {}, {POOL, CLASSIFY}),
        ("generate", {}, {CHAT, TEXT}),
        ("embed", {"mm_encoder_only": True}, set(ROUTES["embed"]) - {EMBED, COHERE}),
    ],
)
def test_a_task_has_the_routes_that_vllm_gives_it(
    task: str, more: dict[str, bool], expected: set[str]
) -> None:
    client = create_app(Settings(model=ModelSettings(task=task, **more))).test_client()
    told = {path: client.post(path, json={}) for path in (*PATHS, CHAT, TEXT)}
    assert {path for path, answer in told.items() if answer.status_code != 404} == expected
    assert all(told[path].json == {"detail": "Not Found"} for path in told.keys() - expected)


def test_embeddings_may_stand_beside_chat_and_completions() -> None:
    """As llm-d-inference-sim has them; the reply of a chat is none the shorter for it."""
    model = ModelSettings(embeddings_with_chat=True)
    assert served_routes(model) == (EMBED,)
    client = create_app(Settings(model=model)).test_client()
    answer = client.post(EMBED, json=BASE[EMBED])
    assert answer.status_code == 200 and answer.json["usage"]["completion_tokens"] == 0
    chat = client.post(CHAT, json={"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3})
    assert chat.json["usage"]["completion_tokens"] == 3
    assert client.post(POOL, json=BASE[POOL]).status_code == 404


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


@pytest.mark.parametrize(("path", "asked", "param"), RULES)
def test_a_broken_rule_is_a_bad_request_error(path: str, asked: dict[str, Any], param: str | None) -> None:
    told = refused(path, {**BASE[path], **asked}, "--task=pooling")
    assert told == (400, "BadRequestError", param)


def test_a_cross_encoder_needs_room_for_both_texts() -> None:
    asked = {"text_1": "a " * 40, "text_2": "a " * 40}
    assert client_of("--task=pooling").post(SCORE, json=asked).status_code == 200
    assert refused(SCORE, asked, "--task=score") == (400, "BadRequestError", "input_tokens")


@pytest.mark.parametrize("path", BASE)
def test_an_unknown_model_is_not_found(path: str) -> None:
    asked = {**BASE[path], "model": "nope"}
    assert refused(path, asked, "--task=pooling") == (404, "NotFoundError", None)


@pytest.mark.parametrize(
    ("config", "status"),
    [
        ("{}", 200),
        ('{"hidden_size": 8}', 400),
        ('{"is_matryoshka": true}', 200),
        ('{"matryoshka_dimensions": [4]}', 200),
    ],
)
def test_a_plain_model_has_vectors_of_one_length(tmp_path: Path, config: str, status: int) -> None:
    (tmp_path / "config.json").write_text(config)
    client = client_of("--task=embed", f"--model={tmp_path}", "--force-dummy-tokenizer")
    assert client.post(EMBED, json={**BASE[EMBED], "dimensions": 4}).status_code == status
    assert client.post(EMBED, json=BASE[EMBED]).status_code == 200
