"""Pooling models in process, with a context of 64 tokens and vectors of 16 numbers; requests and
answers.
"""

from functools import cache
from typing import Any

from flask.testing import FlaskClient

from tests.application import app_of

EMBED = "/v1/embeddings"
POOL = "/pooling"
CLASSIFY = "/classify"
SCORE = "/score"
RERANK = "/rerank"
COHERE = "/v2/embed"
DIMENSIONS = 16
FLAGS = ("--model=tiny", "--max-model-len=64", f"--default-embedding-dimensions={DIMENSIONS}")
MESSAGES = [{"role": "user", "content": "hi"}]

BASE: dict[str, dict[str, Any]] = {
    EMBED: {"input": "hello"},
    POOL: {"input": "hello"},
    CLASSIFY: {"input": "hello"},
    SCORE: {"text_1": "hello", "text_2": "world"},
    RERANK: {"query": "hello", "documents": ["world"]},
}
"""The smallest request that each route takes."""


@cache
def client_of(*flags: str) -> FlaskClient:
    return app_of(*FLAGS, *flags).test_client()


def call(path: str, task: str = "pooling", **fields: Any) -> Any:
    answer = client_of(f"--task={task}").post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.get_json()


def refused(path: str, body: object, *flags: str) -> tuple[int, str, str | None]:
    answer = client_of(*flags).post(path, json=body)
    error = answer.get_json()["error"]
    return answer.status_code, error["type"], error["param"]


def vectors(texts: Any, **fields: Any) -> list[list[float]]:
    return [item["embedding"] for item in call(EMBED, input=texts, **fields)["data"]]


def scores(**fields: Any) -> list[float]:
    return [item["score"] for item in call(SCORE, **fields)["data"]]


def token_ids(prompt: str) -> list[int]:
    ids: list[int] = call("/tokenize", prompt=prompt)["tokens"]
    return ids
