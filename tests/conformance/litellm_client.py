"""One use of litellm against the server at `argv[1]` with model `argv[2]`; prints what came back as JSON.

A program and not a test, for litellm lives in an environment of its own.
"""

import json
import sys
from typing import Any

import litellm  # type: ignore[import-not-found]  # has an environment of its own


def main(url: str, model: str) -> dict[str, Any]:
    """What each kind of request got."""
    litellm.suppress_debug_info = True
    asked: dict[str, Any] = {
        "model": f"hosted_vllm/{model}",
        "api_base": f"{url}/v1",
        "api_key": "x",
        "messages": [{"role": "user", "content": "Say something."}],
        "max_tokens": 6,
        "num_retries": 0,
        "seed": 1,
    }
    whole = litellm.completion(**asked)
    chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
    text = litellm.text_completion(
        model=f"text-completion-openai/{model}",
        api_base=f"{url}/v1",
        api_key="x",
        prompt="hello",
        max_tokens=6,
    )
    return {
        "content": whole.choices[0].message.content,
        "finish_reason": whole.choices[0].finish_reason,
        "usage": _usage(whole),
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "streamed_usage": next(_usage(chunk) for chunk in chunks if getattr(chunk, "usage", None)),
        "text_tokens": text.usage.completion_tokens,
        "choices": len(litellm.completion(**asked, n=3).choices),
        "top_logprobs": [
            len(token.top_logprobs)
            for token in litellm.completion(**asked, logprobs=True, top_logprobs=2)
            .choices[0]
            .logprobs.content
        ],
        "unknown_model": _error_of({**asked, "model": "hosted_vllm/nope"}),
        "wrong_value": _error_of({**asked, "temperature": -1}),
    }


def _usage(answer: Any) -> list[int]:
    usage = answer.usage
    return [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens]


def _error_of(asked: dict[str, Any]) -> str:
    try:
        litellm.completion(**asked)
    except Exception as error:  # each kind has a class of its own
        return type(error).__name__
    return "none"


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
