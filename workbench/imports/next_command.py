"""The command that serves an imported script."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from config.declaration import COMMAND
from workbench.imports.imported_script import Json

POOLING_APIS = frozenset(("embeddings", "pooling", "classify", "score", "rerank"))
"""APIs of models that generate no text."""
REASONING_PARSER = "qwen3"
"""A parser that servers need to accept the `thinking` of messages; scripts work with any."""


def next_command(rules: Sequence[Json], script: Path | None) -> str:
    """Returns the command of a server that has the routes and the models of the rules.

    `script` is the file of the script; None if it was printed.
    """
    words = [*COMMAND.split(), "run", "--script", str(script or "FILE")]
    apis = {api for rule in rules for api in _texts(rule["when"].get("api", ""))}
    if apis <= POOLING_APIS:
        words += ["--task", "embed"]
    elif "embeddings" in apis:
        words.append("--embeddings-with-chat")
    if any(map(_thinks, rules)):
        words += ["--reasoning-parser", REASONING_PARSER]
    models = dict.fromkeys(model for rule in rules for model in _texts(rule["when"].get("model")))
    names = [model for model in models if model.isprintable()]  # a terminal gets them
    if names:
        words += ["--served-model-name", *names]
    return shlex.join(words)


def _thinks(rule: Json) -> bool:
    """Returns whether a rule is for a message with thoughts."""
    if "messages" not in _texts(rule["when"].get("api")):
        return False
    blocks = rule["then"].get("blocks", ())
    return "reasoning" in rule["then"] or any(block["type"] == "thinking" for block in blocks)


def _texts(condition: object) -> Iterable[str]:
    """Returns the texts of a condition; none without one."""
    if condition is None:
        return ()
    if isinstance(condition, str):
        return (condition,)
    return condition if isinstance(condition, list) else ()
