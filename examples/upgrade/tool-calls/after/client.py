"""Counts the tool calls of a reply. Replies without calls have no list since vLLM 0.24."""

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


body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
message = json.load(ask("/chat/completions", body))["choices"][0]["message"]
print(len(message.get("tool_calls") or ()), "calls")
