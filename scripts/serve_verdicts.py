"""Compares what `serve` and vLLM's own parser say about command lines, and prints the differences.

    $ python -m scripts.serve_verdicts LINES [VLLM_PYTHON]

LINES has a JSON list of words per line, without `vllm serve`. VLLM_PYTHON is the interpreter of an
oracle's environment. A difference is another verdict, or another option in the error. Folders are
not compared: vLLM's parser does not look for the model.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from app.core.settings import resolve, settings_type
from config.declaration import ConfigError
from config.sources import ignore_warning
from vllm_facts.serve import settings_of

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "fidelity" / "oracle" / "serve_parser.py"
PYTHON = ROOT / ".oracle" / "0.32.0" / "environment" / "bin" / "python"
OPTION = re.compile(r"--[\w-]+")
OMNI = "omni"
"""Part of the options of vLLM-Omni, which has a parser of its own."""


def main(lines_file: Path, python: Path) -> None:
    """Prints the differences and their number.

    Raises:
        subprocess.CalledProcessError: vLLM cannot be imported, and has printed why.
    """
    lines = [line for line in lines_file.read_text("utf-8").splitlines() if OMNI not in line]
    result = subprocess.run(
        [python, PROGRAM], input="\n".join(lines), stdout=subprocess.PIPE, text=True, check=True
    )
    verdicts = [json.loads(line) for line in result.stdout.splitlines()]
    rejected = sum(bool(verdict["status"]) for verdict in verdicts)
    differences = 0
    for line, verdict in zip(lines, verdicts, strict=True):
        error = error_here(json.loads(line))
        if bool(error) != bool(verdict["status"]) or not names_same(verdict["error"], error):
            differences += 1
            print(f"{line}\n  vLLM: {verdict['error'] or 'starts'}\n  here: {error or 'starts'}")
    print(f"{differences} of {len(lines)} differ; vLLM rejects {rejected}")


def error_here(words: list[str]) -> str:
    """Returns the error of `serve`; empty for a command line that starts."""
    try:
        flags = settings_of(words, {}, settings_type())
        if not flags.help:
            resolve(flags, {}, ignore_warning)
    except ConfigError as error:
        is_about_folder = str(error).startswith("model ")
        return "" if is_about_folder else str(error)
    return ""


def names_same(vllm_error: str, error: str) -> bool:
    """Returns whether the first option in an error is one of those in vLLM's."""
    if "chat template" in vllm_error:
        return "--chat-template" in error
    if vllm_error.startswith("argument"):
        vllm_error = vllm_error.partition(": ")[0]
    names = OPTION.findall(vllm_error.partition("\n\nHint")[0])
    return not names or OPTION.findall(error)[:1] in [[name] for name in names]


if __name__ == "__main__":
    main(Path(sys.argv[1]), next(map(Path, sys.argv[2:]), PYTHON))
