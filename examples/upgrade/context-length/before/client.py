"""Shortens a prompt that is too long. The error has other words since vLLM 0.18."""

import json
import os
import re
import urllib.error
import urllib.request
from typing import Any

TOO_LONG = re.compile(r"You passed (\d+) input tokens")
WORDS = ["bread"] * 50_000


def chat(words: list[str]) -> str:
    """Returns the reply to a message."""
    message = {"role": "user", "content": " ".join(words)}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": [message], "max_tokens": 20}).encode(),
        {"Content-Type": "application/json"},
    )
    answer: Any = json.load(urllib.request.urlopen(request))
    return str(answer["choices"][0]["message"]["content"])


try:
    print(chat(WORDS))
except urllib.error.HTTPError as error:
    error_text = json.load(error)["error"]["message"]
    if not TOO_LONG.search(error_text):
        raise SystemExit(error_text) from None
    print(chat(WORDS[:1_000]))
