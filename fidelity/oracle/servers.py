"""Starts the two servers that are compared, each in one configuration at a time."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fidelity.oracle.builds import build_of
from fidelity.oracle.configurations import (
    COMMON_FLAGS,
    COMMON_VARIABLES,
    MODEL_FOLDER,
    Configuration,
)
from fidelity.oracle.install import python_of
from fidelity.oracle.model import HIDDEN_SIZE
from tests.running_server import RunningServer, free_port, running_command
from vllm_facts.history import read_history
from vllm_facts.names import read_names
from vllm_facts.version import FIRST, PATCHES, parse_version

START_LIMIT_S = 900.0
"""A real vLLM starts within 80 to 280 s on two busy cores."""
VLLM = ("-m", "vllm.entrypoints.cli.main")
"""Arguments of Python that stand for the command `vllm`."""
VLLM_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""One gigabyte of KV cache and one thread, on any cores; no requests to other machines."""
UNDERSTUDY_FLAGS = {
    "lora": ("--inter-token-latency", "5ms", "--require-lora-files"),
    "embed": ("--default-embedding-dimensions", str(HIDDEN_SIZE)),
}
"""Flags of Understudy by configuration: a background response has to run when it is cancelled,
adapters have files, and vectors have the length of the model's.
"""
REPLIES = ("--plugin", str(Path(__file__).with_name("endless_replies.py")))
"""Plugin that lets replies end at their limits, as those of the random model do."""
ENDLESS = "ResponsesRequest.ignore_eos"
"""Field that older releases lack: they need the plugin."""
HELP_COLUMNS = "500"
"""Width of the output of `--help`, which breaks words in shorter lines."""


def help_of(python: Path) -> str:
    """Returns the description of all options of `vllm serve`.

    Raises:
        subprocess.CalledProcessError: vLLM cannot be imported; its errors are on stderr.
    """
    command = [*VLLM, "serve", "--help=all"]
    done = subprocess.run(
        [str(python), *command],
        env={**os.environ, **VLLM_VARIABLES, "COLUMNS": HELP_COLUMNS},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


@contextmanager
def running_vllm(version: str, configuration: Configuration) -> Iterator[RunningServer]:
    """Starts an installed vLLM.

    Raises:
        RuntimeError: the server does not start or does not stop; the text has its log.
    """
    port = free_port()
    command = [
        *(str(python_of(version)), *VLLM),
        *arguments(version, configuration, port),
    ]
    own_variables = {**VLLM_VARIABLES, **build_of(version).variables}
    variables = {**own_variables, **COMMON_VARIABLES, **configuration.variables}
    with running_command(command, port, variables, START_LIMIT_S) as server:
        yield server


@contextmanager
def running_understudy(version: str, configuration: Configuration) -> Iterator[RunningServer]:
    """Starts Understudy with the flags and variables that vLLM gets.

    It simulates the minor version, or the nearest one that it knows.

    Raises:
        RuntimeError: the server does not start or does not stop; the text has its log.
    """
    port = free_port()
    command = [
        *(sys.executable, "-m", "app"),
        *arguments(version, configuration, port),
        *understudy_flags(version, configuration),
    ]
    variables = {**COMMON_VARIABLES, **configuration.variables}
    with running_command(command, port, variables) as server:
        yield server


def understudy_flags(version: str, configuration: Configuration) -> list[str]:
    """Returns Understudy's flags beside those of vLLM."""
    flags = ["--vllm-version", simulated_version_of(version)]
    if ENDLESS in read_names().absent_fields(version):
        flags += REPLIES
    return [*flags, *UNDERSTUDY_FLAGS.get(configuration.name, ())]


def simulated_version_of(version: str) -> str:
    """Returns the version that Understudy simulates in place of a release of vLLM.

    It is the newest one that is not newer than the release, or else the oldest one.
    """
    release = parse_version(version)
    simulated = FIRST
    for name in PATCHES:
        if parse_version(f"{name}.0") <= release:
            simulated = name
    return simulated


def arguments(version: str, configuration: Configuration, port: int) -> list[str]:
    """Returns the command line of `vllm` of a release, without the program.

    Options that the release does not have are left out, as it would not start with them.
    """
    address = ["--host", "127.0.0.1", "--port", str(port)]
    options = read_history().options
    flags: list[str] = []
    is_known = True
    for word in (*COMMON_FLAGS, *configuration.flags):
        if word.startswith("--"):
            is_known = word not in options or options[word].is_in(version)
        if is_known:
            flags.append(word)
    return ["serve", str(MODEL_FOLDER), *address, *flags]
