"""The command that serves an imported script."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from app.extensions.recording.imports.imported_script import Json
from config.declaration import COMMAND

POOLING_APIS = frozenset(("embeddings", "pooling", "classify", "score", "rerank"))
"""APIs of models that generate no text."""


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
    models = dict.fromkeys(model for rule in rules for model in _texts(rule["when"].get("model")))
    names = [model for model in models if model.isprintable()]  # a terminal gets them
    if names:
        words += ["--served-model-name", *names]
    return shlex.join(words)


def _texts(condition: object) -> Iterable[str]:
    """Returns the texts of a condition; none without one."""
    if condition is None:
        return ()
    if isinstance(condition, str):
        return (condition,)
    return condition if isinstance(condition, list) else ()
