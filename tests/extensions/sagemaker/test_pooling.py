"""POST /invocations of encoders: a body goes to the first family that it fits."""

import pytest

from tests.extensions.sagemaker.test_invocations import CHAT, check_family, check_refusal

PAIR = {"query": "cat", "documents": ["a cat"]}


@pytest.mark.parametrize(
    ("task", "body", "begins"),
    [
        ("embed", {"input": "hi"}, "embd-"),
        ("embed", {"messages": CHAT["messages"]}, "embd-"),
        ("embed", {"input": "hi", "embed_dtype": "float32", **PAIR}, "embd-"),
        ("embed", PAIR, "score-"),
        ("embed", {"text_1": "a", "text_2": "b"}, "score-"),
        ("classify", {"input": "hi"}, "classify-"),
        ("score", PAIR, "score-"),
        ("pooling", {"input": "hi", "task": "classify"}, "embd-"),
    ],
)
def test_fields_of_an_invocation_body_determine_which_api_answers(
    task: str, body: object, begins: str
) -> None:
    check_family(task, body, begins)


def test_invalid_invocation_returns_400() -> None:
    check_refusal("classify", {}, None)
    check_refusal("embed", {"input": "x", "normalize": True}, "normalize")
