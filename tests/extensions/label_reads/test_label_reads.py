"""POST /generative_scoring and POST /v1/systemone:

numbers that add up, the same each time, and refusals.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.application import app_of

SCORING, DECISIONS = "/generative_scoring", "/v1/systemone"
SCORE = {"query": "is it a cat", "items": ["a cat", "a stone"], "label_token_ids": [5, 6]}
BAD, RULE = "Bad Request", "BadRequestError"


@cache
def client_of(*flags: str) -> FlaskClient:
    return app_of("--force-dummy-tokenizer", "--max-model-len", "256", *flags).test_client()


def ok(path: str, body: object) -> Any:
    response = client_of().post(path, json=body)
    assert response.status_code == 200, response.text
    return response.get_json()


def decide(**question: object) -> Any:
    """The answer to one question, whose diagnostics agree with it."""
    answer_body = ok(
        DECISIONS,
        {"state": {"animal": "cat"}, "questions": {"q": question}, "instructions": "Judge."},
    )
    assert answer_body["usage"]["output_tokens"] == 1 and answer_body["usage"]["input_tokens"] > 10
    answer, seen = answer_body["answers"]["q"], answer_body["diagnostics"]["q"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1)
    likeliest = max(answer["probabilities"].values())
    assert answer["confidence"] == pytest.approx(likeliest * seen["label_mass"])
    assert answer["type"] == question["type"] and 0.5 <= seen["label_mass"] < 1
    return answer


def test_score_is_the_probability_share_of_the_first_label() -> None:
    first, repeated = ok(SCORING, SCORE), ok(SCORING, SCORE)
    assert first["data"] == repeated["data"] and first["id"].startswith("generative-scoring-")
    assert list(first) == ["id", "object", "created", "model", "data", "usage"]
    usage = first["usage"]
    assert usage["completion_tokens"] == 2 and usage["total_tokens"] == usage["prompt_tokens"] + 2
    turned = ok(SCORING, {**SCORE, "label_token_ids": [6, 5]})["data"]
    for result, other in zip(first["data"], turned, strict=True):
        assert list(result) == ["index", "object", "score"]
        assert result["score"] + other["score"] == pytest.approx(1)
    whole = ok(SCORING, {**SCORE, "apply_softmax": False})["data"]
    assert all(
        own["score"] < result["score"] for own, result in zip(whole, first["data"], strict=True)
    )


def test_each_label_read_counts_as_one_generated_token() -> None:
    def generated() -> float:
        lines = client_of().get("/metrics").text.splitlines()
        return sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith("vllm:generation_tokens_total{")
        )

    generated_before = generated()
    ok(SCORING, SCORE)
    ok(DECISIONS, question(type="noul", instructions="Is it alive?"))
    assert generated() == generated_before + 3


def test_query_and_items_may_be_joined_in_either_order() -> None:
    tokens = {"query": [7, 8], "items": [[9], [10, 11]], "label_token_ids": [1]}
    assert ok(SCORING, tokens)["usage"]["prompt_tokens"] == 7
    pair = {"query": [7, 8], "items": [[9]], "label_token_ids": [1, 2]}
    turned = {**pair, "query": [9], "items": [[7, 8]], "item_first": True}
    assert ok(SCORING, pair)["data"] == ok(SCORING, turned)["data"]
    long = {"query": [7] * 300, "items": [[9]], "label_token_ids": [1]}
    assert ok(SCORING, long)["usage"]["prompt_tokens"] == 255


def test_probabilities_are_returned_for_each_question_type() -> None:
    choice = decide(
        type="choice", criteria={"pet": "lives in a house", "wild": None}, instructions="Which?"
    )
    assert choice["probabilities"].keys() == {"pet", "wild"}
    assert choice["probabilities"][choice["choice"]] == max(choice["probabilities"].values())
    truth = decide(type="noul", instructions="Is it alive?")
    assert truth["noul"] == truth["probabilities"]["yes"]
    level = decide(type="score", criteria=["low", "middle", "high"])
    assert level["legend"] == {"0": "low", "1": "middle", "2": "high"}
    assert level["score"] == pytest.approx(
        level["probabilities"]["1"] + 2 * level["probabilities"]["2"]
    )


def question(**fields: object) -> dict[str, object]:
    return {"state": "a cat", "questions": {"q": fields}}


NOUL = {"type": "noul"}
REFUSALS: list[tuple[str, object, str, str | None]] = [
    (SCORING, {}, BAD, "body.query"),
    (SCORING, {**SCORE, "items": ["a", [1]]}, BAD, "body.items.1"),
    (SCORING, {**SCORE, "cache_salt": ""}, RULE, "cache_salt"),
    (SCORING, {**SCORE, "label_token_ids": [5, -1]}, RULE, None),
    (SCORING, {**SCORE, "label_token_ids": []}, RULE, None),
    (SCORING, {**SCORE, "label_token_ids": list(range(21))}, RULE, "logprobs"),
    (SCORING, {**SCORE, "query": "", "items": [""]}, RULE, None),
    (DECISIONS, {}, BAD, "body.state"),
    (DECISIONS, {"state": None, "questions": {"q": {}}}, BAD, "body.questions.q.type"),
    (DECISIONS, {"state": 1, "questions": {}}, RULE, None),
    (DECISIONS, {"state": 1, "questions": {str(number): NOUL for number in range(65)}}, RULE, None),
    (DECISIONS, {"state": 1, "questions": {"": NOUL}}, RULE, None),
    (DECISIONS, question(**NOUL, hint="x"), RULE, None),
    (
        DECISIONS,
        question(type="choice", criteria={str(number): None for number in range(27)}),
        RULE,
        None,
    ),
    (DECISIONS, question(type="score", criteria=["same", "same"]), RULE, None),
    (DECISIONS, {**question(**NOUL), "images": ["data:image/png;base64,"]}, RULE, None),
    (
        DECISIONS,
        {**question(**NOUL), "chat_template_kwargs": {"enable_thinking": True}},
        RULE,
        None,
    ),
]


def test_invalid_requests_are_rejected_with_the_errors_of_vllm() -> None:
    for path, body, kind, param in REFUSALS:
        response = client_of().post(path, json=body)
        error = response.get_json()["error"]
        assert (response.status_code, error["type"], error["param"]) == (400, kind, param), body
    unknown = {**SCORE, "items": [], "state": 1, "questions": {}, "model": "other"}
    for path in (SCORING, DECISIONS):  # an unknown model comes before the rules
        assert client_of().post(path, json=unknown).status_code == 404


def test_decision_requests_to_unsupported_models_return_501(tmp_path: Path) -> None:
    """Those that make no tokens, and architectures that vLLM does not know how to ask."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    for flags in (("--task", "embed"), ("--model", str(tmp_path))):
        response = client_of(*flags).post(DECISIONS, json=question(**NOUL))
        assert (response.status_code, response.get_json()["error"]["type"]) == (
            501,
            "NotImplementedError",
        )
        assert client_of(*flags).post(DECISIONS, json={}).status_code == 400


def test_task_determines_whether_scoring_and_decision_routes_exist() -> None:
    paths = {route.path for route in app_of("--force-dummy-tokenizer").routes}
    assert paths >= {SCORING, DECISIONS}
    paths = {route.path for route in app_of("--force-dummy-tokenizer", "--task", "embed").routes}
    assert DECISIONS in paths and SCORING not in paths


def test_prompts_with_too_many_tokens_in_total_are_rejected() -> None:
    """Each item repeats the query: a body of 100 KB would take hundreds of megabytes."""
    body = {"query": [5] * 20_000, "items": ["a"] * 250, "label_token_ids": [5, 6]}
    client = app_of("--force-dummy-tokenizer", "--max-model-len", "32768").test_client()
    answer = client.post(SCORING, json=body)
    error = answer.get_json()["error"]
    assert (answer.status_code, error["param"]) == (400, "items")
    assert "together exceed" in error["message"]


def test_error_about_unknown_fields_of_a_question_has_the_words_of_vllm() -> None:
    error = client_of().post(DECISIONS, json=question(**NOUL, hint="x")).get_json()["error"]
    assert error["message"] == "question 'q': unknown field(s) ['hint']"
