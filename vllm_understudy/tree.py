"""Folder of the server's files, and the command and environment of a server process.

The folder has `app`, `config`, `wsgi.py` and `gunicorn.conf.py`. In a checkout, the folder is above
this package; in an installed wheel, the folder is this package. Only server processes import `app`
and `config` from there, so a program that imports `vllm_understudy` keeps its own modules of these
names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
TREE = PACKAGE if (PACKAGE / "app").is_dir() else PACKAGE.parent


def command(*words: str) -> list[str]:
    """Returns the words of `python -m app ...`, to be run with `environment()`."""
    return [sys.executable, "-m", "app", *words]


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns `variables` with the server's folder first on the import path, never the working
    folder.
    """
    path = filter(None, (str(TREE), variables.get("PYTHONPATH")))
    return {**variables, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
