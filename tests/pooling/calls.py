"""Requests to the pooling routes, and their answers."""

from __future__ import annotations

from typing import Any

from tests.conformance.calls import ok, post
from tests.running_server import RunningServer

EMBED, POOL, CLASSIFY, SCORE, RERANK = "/v1/embeddings", "/pooling", "/classify", "/score", "/rerank"
DIMENSIONS = 16
FLAGS = ("--model=tiny", "--max-model-len=64", f"--default-embedding-dimensions={DIMENSIONS}")

BASE: dict[str, dict[str, Any]] = {
    EMBED: {"input": "hello"},
    POOL: {"input": "hello"},
    CLASSIFY: {"input": "hello"},
    SCORE: {"text_1": "hello", "text_2": "world"},
    RERANK: {"query": "hello", "documents": ["world"]},
}
"""The smallest request that each route takes."""


def vectors(server: RunningServer, given: Any, **asked: Any) -> list[list[float]]:
    return [item["embedding"] for item in ok(post(server, EMBED, {"input": given, **asked}))["data"]]


def scores(server: RunningServer, **asked: Any) -> list[float]:
    return [item["score"] for item in ok(post(server, SCORE, asked))["data"]]
