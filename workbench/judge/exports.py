"""The run of a load tool's export that is judged: `read_export`."""

from pathlib import Path

from config import ConfigError
from workbench.runs.exports import VLLM, read_exports
from workbench.runs.input_files import open_input
from workbench.runs.tool_requests import Export


def read_export(path: str) -> Export:
    """Returns the run of an export; the benchmarks of a GuideLLM report are one run.

    Raises:
        ConfigError: The file is not an export of a known tool, or has a mistake.
    """
    with open_input(Path(path)) as (_, file):
        export, *others = read_exports(path, file)
    if others and export.tool == VLLM:
        raise ConfigError(f"{path} contains several results; judge one run at a time")
    for other in others:
        export.requests += other.requests
        export.never_sent += other.never_sent
    if not export.requests:
        raise ConfigError(f"{path} contains no requests")
    for request in export.requests:
        request.check()
    return export
