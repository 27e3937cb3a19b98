"""What all tests of the workbench share; leaves out those that need a deleted extension."""

from math import inf

import pytest

from tests.present import is_present

WORKBENCH = "workbench_commands"
"""Extension of the commands. It requires all extensions that the workbench imports."""
OTHER_EXTENSIONS = {
    "check/test_client_upgrade.py": "faults responses tool_calls",
    "drills/test_fault_flags.py": "faults",
    "imports/test_hostile_fixtures.py": "scripts",
    "imports/test_import_losses.py": "responses scripts",
    "imports/test_imported_archives.py": "scripts",
    "imports/test_imported_cassettes.py": "anthropic responses scripts",
    "imports/test_imported_embeddings.py": "pooling scripts",
    "imports/test_imported_gemini.py": "scripts",
    "imports/test_imported_inputs.py": "scripts",
    "imports/test_imported_providers.py": "anthropic cohere scripts",
    "imports/test_imported_scripts.py": "scripts",
    "imports/test_recorded_blocks.py": "anthropic scripts",
    "imports/wire/test_recorded_lengths.py": "anthropic responses scripts",
    "runs/test_span_traces.py": "tracing",
    "study/wire/test_replay.py": "journal",
}
"""File of tests -> the other extensions that it needs, separated by spaces."""
collect_ignore = [
    file for file, names in OTHER_EXTENSIONS.items() if not all(map(is_present, names.split()))
]
collect_ignore_glob = [] if is_present(WORKBENCH) else ["*"]


@pytest.fixture(autouse=True)
def no_progress_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars would be drawn among expected messages, where a busy machine takes a second."""
    from workbench.load import progress  # cannot be imported without some extensions

    monkeypatch.setattr(progress, "QUIET_S", inf)
