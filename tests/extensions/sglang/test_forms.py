"""Replies of /generate with a required form."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client import Client, in_process


@pytest.fixture(name="client", scope="module")
def _client() -> Iterator[Client]:
    with in_process("--dialect=sglang") as client:
        yield client


def text(client: Client, **params: Any) -> str:
    answer = client.post("/generate", {"text": "Hello", "sampling_params": params})
    assert answer.status_code == 200, answer.text
    reply: str = answer.json()["text"]
    return reply


def test_regex_output_matches_its_pattern(client: Client) -> None:
    requests_before = client.metric("sglang:num_so_requests_total")
    assert re.fullmatch("[ab]{3}", text(client, regex="[ab]{3}"))
    assert client.metric("sglang:num_so_requests_total") == requests_before + 1


def test_json_schema_output_satisfies_the_schema(client: Client) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert isinstance(json.loads(text(client, json_schema=json.dumps(schema)))["a"], int)
    assert isinstance(json.loads(text(client, json_schema="$$ANY$$")), dict)


def test_ebnf_output_follows_its_grammar(client: Client) -> None:
    assert text(client, ebnf='root ::= "yes" | "no"') in ("yes", "no")


@pytest.mark.parametrize("wrong", [{"regex": "("}, {"json_schema": "{"}, {"ebnf": "root"}])
def test_sglang_request_with_an_invalid_output_constraint_is_rejected(
    client: Client, wrong: Any
) -> None:
    answer = client.post("/generate", {"text": "Hello", "sampling_params": wrong})
    assert answer.status_code == 400
    assert list(answer.json()["error"]) == ["message"]
