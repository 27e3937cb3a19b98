"""Compares the prompts of chat templates with those of a real vLLM.

    $ python -m fidelity.judge_templates                       # all templates with vLLM 0.32.0
    $ python -m fidelity.judge_templates --only mistral --show 3

The templates are downloaded once to .judge/templates/VERSION. The exit status is 1 if a prompt
differs that is not in known_differences.json.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from app.core.server.http.errors import ApiError
from app.core.text.base import TokenizerError
from fidelity.judge_templates.conversations import Requests, requests
from fidelity.judge_templates.our_prompts import PromptRenderer
from fidelity.judge_templates.sources import templates
from fidelity.oracle.install import install, python_of
from fidelity.oracle.servers import VLLM_VARIABLES

HERE = Path(__file__).parent
FOLDER = Path(".judge/templates")
VERSION = "0.32.0"
RANDOM_COUNT = 10
SEED = 1
SHOWN_CHARS = 60
NOW = datetime(2026, 2, 3, 14, 5)
"""The time that templates read."""
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
Sources = dict[str, str]


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", default=VERSION, help="version of vLLM (default: %(default)s)")
    parser.add_argument("--only", default="", help="part of the names of templates")
    parser.add_argument("--random", type=int, default=RANDOM_COUNT, help="random conversations")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of random conversations")
    parser.add_argument("--show", type=int, default=20, help="differences that are printed")
    arguments = parser.parse_args()
    install(arguments.version)
    folder = FOLDER / arguments.version
    sources = {
        name: source
        for name, source in templates(folder, arguments.version).items()
        if arguments.only in name
    }
    compared = requests(arguments.random, arguments.seed)
    prompts = vllm_prompts(sources, compared, arguments.version, folder)
    return compare(sources, compared, prompts, arguments.show)


def vllm_prompts(
    sources: Sources, compared: Requests, version: str, folder: Path
) -> Iterator[tuple[str, str, str | None]]:
    """Yields the name of a template, that of a request, and vLLM's prompt.

    Raises:
        subprocess.CalledProcessError: vLLM failed; its output is in the folder.
    """
    questions = folder / "questions.json"
    answers = folder / "prompts.jsonl"
    questions.write_text(
        json.dumps(
            {
                "now": NOW.isoformat(),
                "tokens": TOKENS,
                "templates": sources,
                "requests": compared,
            }
        ),
        encoding="utf-8",
    )
    command = (str(python_of(version)), str(HERE / "ask_vllm.py"), str(questions), str(answers))
    with (folder / "vllm.log").open("wb") as log:
        subprocess.run(command, check=True, stderr=log, env={**os.environ, **VLLM_VARIABLES})
    with answers.open(encoding="utf-8") as lines:
        for line in lines:
            template_name, name, prompt = json.loads(line)
            yield template_name, name, prompt


def compare(
    sources: Sources,
    compared: Requests,
    prompts: Iterator[tuple[str, str, str | None]],
    max_shown: int,
) -> int:
    """Prints the differences; returns the exit status."""
    known_differences = json.loads((HERE / "known_differences.json").read_text(encoding="utf-8"))
    counts: Counter[str] = Counter()
    renderers: dict[str, PromptRenderer] = {}
    for template_name, name, prompt in prompts:
        if template_name not in renderers:
            source = sources[template_name]
            renderers[template_name] = PromptRenderer(source, TOKENS, NOW)
        ours = our_prompt(renderers[template_name], *compared[name])
        if ours == prompt:
            counts["equal"] += 1
            counts["rejected by both"] += prompt is None
        elif f"{template_name} {name}" in known_differences:
            counts["known to differ"] += 1
        else:
            counts["different"] += 1
            if counts["different"] <= max_shown:
                print(f"{template_name}: {name}: {difference(prompt, ours)}")
    for kind, count in counts.items():
        print(f"{count:6} {kind}")
    return int(bool(counts["different"]))


def our_prompt(renderer: PromptRenderer, api: str, body: object) -> str | None:
    """Returns our prompt; None if the request is rejected."""
    try:
        return renderer.prompt(api, body)
    except (ApiError, TokenizerError):
        return None


def difference(expected: str | None, found: str | None) -> str:
    """Describes the first difference between two prompts."""
    if expected is None or found is None:
        return f"expected {'an error' if expected is None else 'a prompt'}"
    start = len(os.path.commonprefix((expected, found)))
    end = start + SHOWN_CHARS
    return f"at {start}: expected {expected[start:end]!r}, found {found[start:end]!r}"


if __name__ == "__main__":
    sys.exit(main())
