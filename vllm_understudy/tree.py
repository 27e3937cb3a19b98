"""Where the server's files are, and the process that runs them.

The server is a folder with `app`, `config`, `wsgi.py` and `gunicorn.conf.py`: the one above this package in a
checkout, this package itself where a wheel was installed. Names as common as `app` and `config` are looked
for there in processes of the server only; whoever imports `vllm_understudy` keeps them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
TREE = PACKAGE if (PACKAGE / "app").is_dir() else PACKAGE.parent


def command(*words: str) -> list[str]:
    """`python -m app` with `words`, to be run in our `environment`."""
    return [sys.executable, "-m", "app", *words]


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`variables` for such a process: it looks in the server's folder first, never in that of its caller."""
    path = filter(None, (str(TREE), variables.get("PYTHONPATH")))
    return {**variables, "PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
