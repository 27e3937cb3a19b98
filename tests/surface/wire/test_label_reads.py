"""POST /generative_scoring and POST /v1/systemone: numbers that add up, the same each time, and refusals."""

from __future__ import annotations

from tests.surface.conftest import Client
from tests.surface.test_label_reads import DECISIONS, NOUL, SCORE, SCORING, question


def test_over_http(client: Client) -> None:
    before = client.metric("vllm:generation_tokens_total")
    assert len(client.post(SCORING, SCORE).json()["data"]) == 2
    assert client.post(DECISIONS, question(**NOUL)).json()["object"] == "structured_decision"
    assert client.metric("vllm:generation_tokens_total") == before + 3
