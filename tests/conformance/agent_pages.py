"""The sections of docs/coding-agents.md, and the real programs that do the task as printed there."""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.needs import AIDER, CODING_AGENTS
from tests.running_server import ROOT

PAGE = (ROOT / "docs" / "coding-agents.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"(?:#|//) (\S+)\n")
AGENTS = {
    "codex": "Codex CLI",
    "opencode": "opencode",
    "claude": "Claude Code",
    "aider": "Aider",
}
"""Headings of the sections, by the name of the program."""
SERVER_FLAGS = (
    "--served-model-name",
    "understudy",
    "--max-model-len",
    "262144",
    "--journal",
    "100",
)
COMMAND_LINE = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.MULTILINE)
"""A command, which may go on in the next line behind a backslash."""
TASK_FILE = "greet.py"
MISSPELLED = 'print("Helo")\n'
CORRECT = 'print("Hello")\n'
RUN_LIMIT_S = 150.0
SESSIONS = ROOT / "examples" / "sessions"
"""Recorded sessions of the agents, by the name of the program."""


@dataclass
class Section:
    """One agent: the files of its section, and its command lines."""

    files: dict[str, str] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)


def section(heading: str) -> Section:
    """Returns the files and commands of the section with this heading."""
    [text] = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    parsed = Section()
    for language, block in BLOCK.findall(text):
        if language == "console":
            parsed.commands += COMMAND_LINE.findall(block)
            continue
        name = FILE_NAME.match(block)
        assert name is not None, f"{heading}: a block without a file name"
        if name[1].endswith(".json"):
            block = block[name.end() :]
        parsed.files[name[1]] = block
    return parsed


def make_folder(page_section: Section, folder: Path, port: int) -> None:
    """Writes the files of the section and the file of the task, for a server at `port`."""
    for name, text in page_section.files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(":8000", f":{port}"))
    (folder / TASK_FILE).write_text(MISSPELLED)


def run_agent(name: str, page_section: Section, folder: Path, port: int) -> str:
    """Runs the commands of the section in `folder`, as on an empty account; returns the output."""
    programs = folder / ".programs"
    programs.mkdir(exist_ok=True)
    program = programs / name
    program.unlink(missing_ok=True)
    program.symlink_to(program_path(name))
    home = folder / ".home"
    home.mkdir(exist_ok=True)
    environment = {
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "npm_config_offline": "true",
    }
    done = subprocess.run(
        ["bash", "-euc", "\n".join(page_section.commands).replace(":8000", f":{port}")],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def program_path(name: str) -> Path:
    """Returns the program of an agent."""
    if name == "aider":
        return Path(AIDER or "aider")
    return CODING_AGENTS[name]
