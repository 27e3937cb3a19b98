"""Prints the reason of a refusal. The reason is in an object since vLLM 0.10.1."""

import json
import os
import urllib.request
from typing import Any
from urllib.error import HTTPError


def ask(path: str, body: dict[str, Any], **headers: str) -> Any:
    """Returns the answer to a request."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + path,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    return urllib.request.urlopen(request)


BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
ask("/chat/completions", BODY)
try:
    ask("/chat/completions", {**BODY, "temperature": -1})
except HTTPError as error:
    print("refused:", json.load(error)["message"])
