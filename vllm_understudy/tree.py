"""Folder of the server's files, and the command and environment of a server process.

The folder has `app`, `config`, `wsgi.py` and `gunicorn.conf.py`. In a checkout, the folder is above
this package; in an installed wheel, the folder is this package. Only server processes import `app`
and `config` from there, so a program that imports `vllm_understudy` keeps its own modules of these
names.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
TREE = PACKAGE if (PACKAGE / "app").is_dir() else PACKAGE.parent
"""The folder of the server's files."""

CALLER_VARIABLES = "UNDERSTUDY_CALLER_VARIABLES"
"""Variable with the values, as JSON, that a caller gave the variables of `PYTHON_VARIABLES`; null
for a variable that is not set. A command that runs a program of the caller restores them."""
PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONSAFEPATH")


def command(*arguments: str) -> list[str]:
    """Returns the command `python -m app ...`, to be run with `environment()`."""
    return [sys.executable, "-m", "app", *arguments]


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns `variables` with the server's folder first on the import path.

    The working folder is never on the path.
    """
    folders = filter(None, (str(TREE), variables.get("PYTHONPATH")))
    return {**variables, "PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}


def command_environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns `environment()`, with the caller's own values in `CALLER_VARIABLES`."""
    own = {name: variables.get(name) for name in PYTHON_VARIABLES}
    return environment(variables) | {CALLER_VARIABLES: json.dumps(own)}
