"""The folder and the environment of servers with a stranger's options: start at `Isolation`.

Its options name no module, file, or host (`vllm_facts.foreign_options`). But a relative name, such
as that of a model, could be that of a file in the working folder, which is the stranger's checkout.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SERVER_FOLDER = str(Path(__file__).parents[2])
"""Folder of the server's modules, which a user may have installed in the checkout."""
PYTHON_PATH = "PYTHONPATH"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""Variables with which tokenizers come from the local cache only."""


class Isolation(NamedTuple):
    """A working folder without files of strangers, and an environment without their folders."""

    folder: str
    """Working folder of the server, which has no file with the name of a model."""
    checkout: str
    """Folder whose modules are not imported."""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns an environment with which servers import no stranger's module and ask no host.

        The import path keeps absolute folders outside of the checkout.
        """
        checkout = os.path.realpath(self.checkout)
        folders = [
            folder
            for folder in environ.get(PYTHON_PATH, "").split(os.pathsep)
            if folder == SERVER_FOLDER
            or (os.path.isabs(folder) and not _is_below(os.path.realpath(folder), checkout))
        ]
        return {**environ, **OFFLINE, PYTHON_PATH: os.pathsep.join(folders)}


def _is_below(path: str, folder: str) -> bool:
    return os.path.join(path, "").startswith(os.path.join(folder, ""))
