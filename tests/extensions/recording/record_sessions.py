"""Records examples/sessions anew: `python -m tests.extensions.recording.record_sessions [NAME...]`.

Each agent does the task of docs/coding-agents.md by the rules of its section, through a recorder.
The prompts of the agents are left out of the recordings.
"""

import sys
import tempfile
from pathlib import Path

from app.core.cli import main
from tests.conformance.agent_pages import (
    AGENTS,
    SERVER_FLAGS,
    SESSIONS,
    make_folder,
    run_agent,
    section,
)
from tests.extensions.recording.recordings import recording_proxy
from tests.running_server import running_server


def record(name: str, folder: Path) -> None:
    """Records the session of one agent."""
    page_section = section(AGENTS[name])
    script = folder / f"{name}.yaml"
    script.write_text(page_section.files[script.name])
    recording = folder / "session.jsonl"
    with (
        running_server("--script", str(script), *SERVER_FLAGS) as server,
        recording_proxy(server, recording) as proxy,
    ):
        make_folder(page_section, folder, proxy.port)
        run_agent(name, page_section, folder, proxy.port)
    out = SESSIONS / f"{name}.jsonl"
    out.unlink(missing_ok=True)
    main(["fork", str(recording), "--without-prompts", "--out", str(out)])


if __name__ == "__main__":
    for agent in sys.argv[1:] or ("codex", "opencode", "claude"):
        with tempfile.TemporaryDirectory() as path:
            record(agent, Path(path))
