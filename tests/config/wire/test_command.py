"""`understudy`: exit status, one line on stderr, and what gunicorn is started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.test_command import ROOT
from tests.forked_server import run_forked


@pytest.mark.parametrize(("name", "absent"), [("generate", "torch, numpy")])
def test_command_prints_help_even_if_optional_libraries_are_missing(name: str, absent: str) -> None:
    line = f"import sys; sys.modules |= dict.fromkeys('{absent}'.split(', '))"
    code = f"{line}; from app.core.cli import main; sys.exit(main(['{name}', '--help']))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: understudy {name}" in done.stdout


@pytest.fixture(scope="module")
def for_bash() -> str:
    return run_forked("completion", "bash").stdout


def test_bash_completion_completes_commands_and_flags(for_bash: str, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(for_bash)
    for words, completed in (
        (["simu"], "simulate"),
        (["simulate", "--rat"], "--rate"),
        (["--max-num-s"], "--max-num-seqs"),
        (["--port", "3", "--max-num-s"], "--max-num-seqs"),
        (["completion", "f"], "fish"),
    ):
        line = f"COMP_WORDS=(understudy {' '.join(words)}) COMP_CWORD={len(words)}"
        code = f"source {script}; {line}; _understudy; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=50)
        assert (done.stdout, done.stderr) == (f"{completed}\n", ""), words


def test_completion_scripts_for_zsh_and_fish_are_generated(for_bash: str) -> None:
    zsh = run_forked("completion", "zsh").stdout
    fish = run_forked("completion", "fish").stdout
    assert "bashcompinit" in zsh and zsh.endswith(for_bash)
    [line] = [line for line in fish.splitlines() if "subcommand_from simulate'" in line]
    assert line.startswith("complete -c understudy -n") and " --rate " in line


@pytest.mark.parametrize(
    ("argv", "unbuffered"),
    [
        (["--help"], ""),
        (["serve", "--help"], ""),
        (["dataset", "--help"], "1"),
    ],
)
def test_command_whose_output_pipe_is_closed_prints_no_traceback(
    argv: list[str], unbuffered: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command_line = [sys.executable, "-m", "app", *argv]
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command_line, cwd=ROOT, env=environ, stdout=writing, stderr=subprocess.PIPE, timeout=50
    )
    os.close(writing)
    assert done.stderr == b""


@pytest.mark.parametrize(
    "words",
    [["--swap-space", "16"], ["--compilation-config.zzz", "1"], ["--enable-auto-tool-choice"]],
)
def test_serve_ends_with_status_two_for_what_vllms_parser_rejects(words: list[str]) -> None:
    done = run_forked("serve", "m", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert words[0].partition(".")[0] in done.stderr
