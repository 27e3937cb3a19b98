"""Asks as a web page does. Pages need --allowed-origins since vLLM 0.32."""

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


body = {"model": "Qwen/Qwen3-8B", "messages": [{"role": "user", "content": "Hello"}]}
headers = ask("/chat/completions", body, Origin="https://app.example").headers
if headers["Access-Control-Allow-Origin"] != "*":
    raise SystemExit("blocked: the answer has no Access-Control-Allow-Origin")
