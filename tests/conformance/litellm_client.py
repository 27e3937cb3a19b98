"""litellm against the server at `argv[1]` with model `argv[2]`; prints what came back as JSON.

Also what it makes of prompts that are too long, for that server and for the one at `argv[3]`: it
knows them by words of the message, and falls back to a model with a longer context. A program and
not a test: litellm has an environment of its own. Importing it takes four seconds of CPU.
"""

import json
import sys
import warnings
from typing import Any

warnings.simplefilter("error", UserWarning)
import litellm  # type: ignore[import-not-found]  # noqa: E402  # has an environment of its own

LENGTHS = {"a little": 3_000, "far": 300_000}
"""Words of a prompt that is so much too long; the second one is not even made tokens."""


def main(url: str, model: str) -> dict[str, Any]:
    """What each kind of request got."""
    arguments: dict[str, Any] = {
        **{
            "model": f"hosted_vllm/{model}",
            "api_base": f"{url}/v1",
            "api_key": "x",
            "num_retries": 0,
        },
        **{"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 6, "seed": 1},
    }
    whole = litellm.completion(**arguments)
    chunks = list(
        litellm.completion(**arguments, stream=True, stream_options={"include_usage": True})
    )
    text = litellm.text_completion(
        model=f"text-completion-openai/{model}",
        api_base=f"{url}/v1",
        api_key="x",
        prompt="hello",
        max_tokens=6,
    )
    logprobs = litellm.completion(**arguments, logprobs=True, top_logprobs=2).choices[0].logprobs
    return {
        "content": whole.choices[0].message.content,
        "finish_reason": whole.choices[0].finish_reason,
        "usage": _usage(whole),
        "streamed": "".join(
            chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices
        ),
        "streamed_usage": next(_usage(chunk) for chunk in chunks if getattr(chunk, "usage", None)),
        "text_tokens": text.usage.completion_tokens,
        "choices": len(litellm.completion(**arguments, n=3).choices),
        "top_logprobs": [len(token.top_logprobs) for token in logprobs.content],
        "unknown_model": _error_of(litellm.completion, **arguments | {"model": "hosted_vllm/nope"}),
        "wrong_value": _error_of(litellm.completion, **arguments, temperature=-1),
    }


def too_long(url: str, model: str) -> dict[str, dict[str, str]]:
    """The classes of the errors for prompts of each length."""
    return {name: _errors_of(url, model, "word " * words) for name, words in LENGTHS.items()}


def _errors_of(url: str, model: str, text: str) -> dict[str, str]:
    """The class of the error of every kind of request."""
    server: dict[str, Any] = {"api_base": f"{url}/v1", "api_key": "x", "num_retries": 0}
    chat = {**server, "messages": [{"role": "user", "content": text}], "max_tokens": 9}
    ours = {**chat, "model": f"hosted_vllm/{model}"}
    return {
        "chat": _error_of(litellm.completion, **ours),
        "stream": _error_of(litellm.completion, **ours, stream=True),
        "openai": _error_of(litellm.completion, **chat, model=f"openai/{model}"),
        "anthropic": _error_of(
            litellm.completion, **chat | {"api_base": url}, model=f"anthropic/{model}"
        ),
        "text": _error_of(
            litellm.text_completion, **server, model=f"text-completion-openai/{model}", prompt=text
        ),
    }


def _usage(answer: Any) -> list[int]:
    usage = answer.usage
    return [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


def _error_of(ask: Any, **fields: Any) -> str:
    try:
        ask(**fields)
    except Exception as error:  # each kind has a class of its own
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    _, url, model, overflowing_url = sys.argv
    results = {
        "answers": main(url, model),
        "too long": too_long(url, model),
        "overflowing": too_long(overflowing_url, model),
    }
    print(json.dumps(results))
