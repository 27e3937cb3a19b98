"""The environment of a user who has installed the package."""

import os
import sys
from importlib.metadata import entry_points

import pytest

from tests.running_server import ROOT

PLUGIN = "vllm_understudy.pytest_plugin"
IS_INSTALLED = any(plugin.value == PLUGIN for plugin in entry_points(group="pytest11"))
"""True after `uv sync` or `pip install -e .`; pytest then loads the plugin without an option."""
PLUGIN_OPTIONS = () if IS_INSTALLED else ("-p", PLUGIN)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables with the commands `understudy` and `pytest`, with its plugin, and a pip that does
    nothing.
    """
    programs = tmp_path_factory.mktemp("bin")
    words = {
        "understudy": "-m vllm_understudy",
        "pytest": " ".join(("-m pytest", *PLUGIN_OPTIONS)),
    }
    for name, module in words.items():
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
    (programs / "pip").write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    variables = {
        name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "SIM_"))
    }
    path = f"{programs}:{variables['PATH']}"
    return {**variables, "PATH": path, "PYTHONPATH": str(ROOT), "UNDERSTUDY": str(ROOT)}
