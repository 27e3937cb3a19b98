"""Reads the usage of a streamed completion. Other chunks have no usage since vLLM 0.21."""

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


body = {"model": "m", "prompt": "Hello", "stream": True, "stream_options": {"include_usage": True}}
total = 0
for line in ask("/completions", body):
    if line.startswith(b"data: {"):
        chunk = json.loads(line.removeprefix(b"data: "))
        usage = chunk["usage"]
        if usage is not None:
            total = usage["total_tokens"]
print(total, "tokens")
