"""Answers to requests with media, against those of a real vLLM with a tiny random model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.application import app_of
from tests.extensions.media.tiny_model import FLAGS, write_model

RECORDED = json.loads((Path(__file__).parent / "recorded" / "vllm-0.32.json").read_text("utf-8"))
"""Requests in the order in which vLLM got them: later ones find the media of earlier ones."""
CACHE = ("--enable-kvcache", "--kv-cache-size", "4096", "--mode", "random")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Status and JSON of our answer by the name of the request."""
    folder = tmp_path_factory.mktemp("models") / "tiny-vl"
    write_model(folder)
    flags = (*FLAGS, *CACHE, "--vllm-version", "0.32", "--seed", "1")
    client: FlaskClient = app_of("--model", str(folder), *flags).test_client()
    collected: dict[str, Any] = {}
    for case in RECORDED:
        answer = client.post(case["path"], json=case["body"])
        collected[case["name"]] = (answer.status_code, answer.get_json())
    yield collected


@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_status_usage_and_error_are_those_of_vllm(
    case: dict[str, Any], answers: dict[str, Any]
) -> None:
    status, body = answers[case["name"]]
    assert status == case["status"], body
    for name, value in case["answer"].items():
        assert body[name] == value
