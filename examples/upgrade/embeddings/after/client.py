"""Prints the length of a vector. The option --task is gone since vLLM 0.13."""

import json
import os
import urllib.request
from typing import Any


def ask(path: str, body: dict[str, Any], **headers: str) -> Any:
    """Returns the answer to a request."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + path,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    return urllib.request.urlopen(request)


vectors = json.load(ask("/embeddings", {"model": "BAAI/bge-m3", "input": ["Hello"]}))["data"]
print(len(vectors[0]["embedding"]), "numbers")
