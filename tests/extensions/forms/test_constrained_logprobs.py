"""Log probabilities of constrained tokens: those of what the constraint allows."""

from math import log
from typing import Any

import pytest

from tests.client import Client, in_process

LOW = -9999.0


def entries(client: Client, form: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    chat = client.chat("Hi", structured_outputs=form, logprobs=True, **fields)
    content: list[dict[str, Any]] = chat["choices"][0]["logprobs"]["content"]
    return content


@pytest.mark.parametrize(
    ("form", "count"),
    [
        ({"choice": ["only"]}, 1),
        ({"choice": ["a", "b"]}, 2),
        ({"choice": ["x", "y", "z"]}, 3),
        ({"regex": "[0-9]"}, 10),
        ({"json": {"enum": [1, 2, 3, 4]}}, 4),
        ({"json": {"const": "k"}}, 1),
    ],
)
def test_first_token_shares_the_probability_with_the_other_allowed_ones(
    client: Client, form: dict[str, Any], count: int
) -> None:
    first, *others = entries(client, form, top_logprobs=5)
    assert first["logprob"] == pytest.approx(-log(count))
    shown = [item["logprob"] for item in first["top_logprobs"]]
    shared = min(count, 5)
    assert shown[:shared] == pytest.approx([-log(count)] * shared)
    assert all(logprob == LOW for logprob in shown[shared:])
    assert [item["logprob"] for item in others] == pytest.approx([0.0] * len(others))


@pytest.mark.parametrize(
    "form",
    [
        {"choice": [f"choice {number}" for number in range(400)]},
        {"json": {"enum": [f"choice {number}" for number in range(400)]}},
        {"regex": "|".join(f"x{number}" for number in range(400))},
    ],
    ids=["choices", "enum", "long regex"],
)
def test_tokens_of_many_choices_keep_their_log_probabilities(
    client: Client, form: dict[str, Any]
) -> None:
    """Each place would search all of them again: 150,000 held the event loop for seconds."""
    content = entries(client, form, top_logprobs=5, max_tokens=4)
    shown = [item["logprob"] for entry in content for item in entry["top_logprobs"]]
    assert LOW not in shown


def test_tokens_of_the_thoughts_before_a_constraint_keep_their_log_probabilities() -> None:
    with in_process("--reasoning-parser", "qwen3") as client:
        content = entries(client, {"choice": ["only"]}, top_logprobs=1)
    assert content[0]["logprob"] < -0.9
    assert content[-1]["logprob"] == 0.0


def test_forced_tokens_of_a_completion_have_log_probability_zero(client: Client) -> None:
    answer = client.post(
        "/v1/completions",
        {
            "prompt": "x",
            "logprobs": 1,
            "max_tokens": 20,
            "structured_outputs": {"choice": ["forced text"]},
        },
    ).json()
    assert set(answer["choices"][0]["logprobs"]["token_logprobs"]) == {0.0}
