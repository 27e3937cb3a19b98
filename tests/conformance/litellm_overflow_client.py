"""What litellm makes of prompts that are too long for model `argv[2]` of the server at `argv[1]`, as JSON.

It knows them by words of the message, and then falls back to a model with a longer context.
"""

import json
import sys
from typing import Any

import litellm  # type: ignore[import-not-found]  # has an environment of its own

LENGTHS = {"a little": 3_000, "far": 300_000}
"""Words of a prompt that is so much too long; the second one is not even made tokens."""


def main(url: str, model: str) -> dict[str, dict[str, str]]:
    """The class of the error of every kind of request, by how much it is too long."""
    litellm.suppress_debug_info = True
    server: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "x", "num_retries": 0}
    return {name: _errors(server, model, "word " * words) for name, words in LENGTHS.items()}


def _errors(server: dict[str, Any], model: str, text: str) -> dict[str, str]:
    base = server["api_base"].removesuffix("/v1")
    chat = {**server, "messages": [{"role": "user", "content": text}], "max_tokens": 9}
    ours = {**chat, "model": f"hosted_vllm/{model}"}
    return {
        "chat": _error_of(litellm.completion, **ours),
        "stream": _error_of(litellm.completion, **ours, stream=True),
        "openai": _error_of(litellm.completion, **chat, model=f"openai/{model}"),
        "anthropic": _error_of(litellm.completion, **chat | {"api_base": base}, model=f"anthropic/{model}"),
        "text": _error_of(
            litellm.text_completion, **server, model=f"text-completion-openai/{model}", prompt=text
        ),
    }


def _error_of(ask: Any, **asked: Any) -> str:
    try:
        ask(**asked)
    except Exception as error:  # each kind has a class of its own
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
