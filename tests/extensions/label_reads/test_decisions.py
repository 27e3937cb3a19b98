"""POST /v1/decisions, and the changes of /v1/systemone that came with it."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import Client, TestResponse

from tests.application import app_of

PATH = "/v1/decisions"
PREDICATE: dict[str, Any] = {"type": "predicate", "instructions": "Is it blue?"}
CHOICE: dict[str, Any] = {
    "type": "choice",
    "instructions": "Which?",
    "name": "kind",
    "choices": [{"value": True}, {"value": "x", "description": "An x."}],
}
SCORE: dict[str, Any] = {
    "type": "score",
    "instructions": "How much?",
    "levels": [{"label": "low"}, {"label": "middle"}, {"label": "high"}],
}
QUESTIONS = [PREDICATE, CHOICE, SCORE]
STATE = {"state": "a cat", "questions": {"q": {"type": "noul"}}}


@cache
def client_of(version: str, *flags: str) -> Client:
    common = ("--force-dummy-tokenizer", "--served-model-name", "m", "--enable-kvcache")
    return app_of("--vllm-version", version, *common, *flags).test_client()


def post(client: Client, **fields: Any) -> TestResponse:
    body = {"model": "m", "input": "the sky is blue", "questions": QUESTIONS}
    return client.post(PATH, json=body | fields)


def decided(**fields: Any) -> dict[str, Any]:
    answer = post(client_of("0.33"), **fields)
    assert answer.status_code == 200, answer.text
    assert answer.json is not None
    parsed: dict[str, Any] = answer.json
    return parsed


def test_answer_to_each_type_of_question_has_the_fields_of_that_type() -> None:
    answer = decided()
    assert list(answer) == ["model", "answers", "usage"]
    predicate, choice, score = answer["answers"]
    assert list(predicate) == ["type", "name", "probability"]
    assert predicate["name"] is None
    assert 0 < predicate["probability"] < 1
    assert choice["name"] == "kind"
    likeliest = max(choice["probabilities"], key=lambda entry: entry["probability"])
    assert choice["choice"] == likeliest["value"]
    assert sum(entry["probability"] for entry in choice["probabilities"]) == pytest.approx(1)
    assert choice["confidence"] < likeliest["probability"]
    levels = score["probabilities"]
    assert [(level["value"], level["label"]) for level in levels] == [
        (0, "low"),
        (1, "middle"),
        (2, "high"),
    ]
    expected = levels[1]["probability"] + 2 * levels[2]["probability"]
    assert score["score"] == pytest.approx(expected)


def test_same_questions_about_the_same_text_get_the_same_answers() -> None:
    messages = [{"role": "user", "content": [{"type": "input_text", "text": "the sky is blue"}]}]
    assert decided()["answers"] == decided(input=messages)["answers"]
    assert decided()["answers"] != decided(input="the sea is blue")["answers"]


def test_usage_contains_the_output_and_cached_tokens_of_all_questions() -> None:
    text = "It is a long text about the sky. " * 20
    first = decided(input=text, cache_salt="a salt")["usage"]
    second_usage = decided(input=text, cache_salt="a salt")["usage"]
    assert first["output_tokens"] == 3
    assert first["total_tokens"] == first["input_tokens"] + 3
    assert first["output_tokens_details"] == {"reasoning_tokens": 0}
    first_details, after = first["input_tokens_details"], second_usage["input_tokens_details"]
    assert after["cached_tokens"] > first_details["cached_tokens"]
    assert after["cache_write_tokens"] < first_details["cache_write_tokens"]


def with_choices(*values: object) -> dict[str, Any]:
    return CHOICE | {"choices": [{"value": value} for value in values]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "body.model"),
        ({"input": 5}, "body.input.constrained-str"),
        ({"input": [{"role": "system", "content": "x"}]}, "body.input.constrained-str"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "body.input.constrained-str"),
        ({"questions": []}, "body.questions"),
        ({"questions": [PREDICATE] * 201}, "body.questions"),
        ({"questions": [{"type": "other"}]}, "body.questions.0"),
        ({"questions": [PREDICATE, {"type": "predicate"}]}, "body.questions.1.predicate.instructions"),
        ({"questions": [PREDICATE | {"name": None}]}, "body.questions.0.predicate"),
        ({"questions": [PREDICATE | {"hint": 1}]}, "body.questions.0.predicate.hint"),
        ({"questions": [with_choices("a")]}, "body.questions.0.choice.choices"),
        ({"questions": [with_choices("a", 1)]}, "body.questions.0.choice.choices.1.value.str"),
        ({"questions": [with_choices("a", "a")]}, "body.questions.0.choice"),
        ({"safety_identifier": "x" * 129}, "body.safety_identifier"),
        ({"joint": "true"}, "body.joint"),
        ({"hint": 1}, "body.hint"),
    ],
)  # fmt: skip
def test_body_that_violates_the_schema_returns_400(fields: dict[str, Any], param: str) -> None:
    answer = post(client_of("0.33"), **fields)
    assert answer.status_code == 400
    assert answer.json is not None
    error = answer.json["error"]
    assert (error["type"], error["param"]) == ("Bad Request", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 129}, "cache_salt"),
        ({"joint": True}, None),
        ({"questions": [PREDICATE] * 65}, None),
        ({"questions": [with_choices(*map(str, range(27)))]}, None),
    ],
)
def test_question_that_the_model_cannot_answer_returns_400(
    fields: dict[str, Any], param: str | None
) -> None:
    answer = post(client_of("0.33"), **fields)
    assert answer.status_code == 400
    assert answer.json is not None
    error = answer.json["error"]
    assert (error["type"], error["param"]) == ("BadRequestError", param)


def test_boolean_choice_differs_from_the_string_true() -> None:
    [answer] = decided(questions=[with_choices(True, "true")])["answers"]
    assert [entry["value"] for entry in answer["probabilities"]] == [True, "true"]


def test_unknown_model_returns_404() -> None:
    assert post(client_of("0.33"), model="other").status_code == 404


def test_model_without_decision_support_returns_501(tmp_path: Path) -> None:
    llama, gemma = tmp_path / "llama", tmp_path / "gemma"
    for folder, architecture in ((llama, "LlamaForCausalLM"), (gemma, "Gemma4ForCausalLM")):
        folder.mkdir()
        (folder / "config.json").write_text(f'{{"architectures": ["{architecture}"]}}')
    assert post(client_of("0.33", "--task", "embed")).status_code == 501
    assert post(client_of("0.33", "--model", str(llama))).status_code == 501
    assert post(client_of("0.33", "--model", str(gemma))).status_code == 200
    earlier = client_of("0.32", "--model", str(gemma))
    assert earlier.post("/v1/systemone", json=STATE).status_code == 501


def test_decisions_route_does_not_exist_in_version_0_32() -> None:
    assert post(client_of("0.32")).status_code == 404


def test_since_version_0_33_the_systemone_route_rejects_joint_decisions() -> None:
    answer = client_of("0.33").post("/v1/systemone", json=STATE | {"joint": False})
    assert answer.json is not None
    assert list(answer.json)[-1] == "joint"
    assert answer.json["joint"] is None
    for fields, param in (
        ({"joint": True}, None),
        ({"joint": 1}, "body.joint"),
        ({"a": 1}, "body.a"),
    ):
        refused = client_of("0.33").post("/v1/systemone", json=STATE | fields)
        assert refused.status_code == 400
        assert refused.json is not None
        assert refused.json["error"]["param"] == param
        earlier = client_of("0.32").post("/v1/systemone", json=STATE | fields)
        assert earlier.status_code == 200
        assert earlier.json is not None
        assert "joint" not in earlier.json
