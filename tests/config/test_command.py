"""`understudy`: exit status, one line on stderr, and what gunicorn is started with."""

import os
import sys
from pathlib import Path

import pytest

from app.core import cli as command
from app.core.settings import load
from app.entrypoint import run
from config import VERSION
from config.durations import parse_duration

ROOT = Path(__file__).parents[2]
PARALLEL = "unknown flag --tensor-paralel-size; did you mean --tensor-parallel-size?"


@pytest.mark.parametrize(
    ("argv", "error_text"),
    [
        (["--port", "0"], "setting port: '0' (flag --port) must be between 1 and 65535"),
        (["--prot", "1"], "unknown flag --prot; did you mean --port?"),
        (["--port", "1", "x"], "unexpected argument 'x': settings must be written as --name value"),
        (["serve", "--tensor-paralel-size", "2"], PARALLEL),
    ],
)
def test_exit_status_distinguishes_invalid_settings_from_bad_arguments(
    argv: list[str], error_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check_error(argv, error_text, capsys)


def check_error(argv: list[str], error_text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Asserts that a command ends with one line on stderr, and with the status of that error."""
    assert command.main(argv) == (1 if error_text.startswith("setting") else 2)
    assert capsys.readouterr() == ("", f"error: {error_text}\n")


def test_help_explains_the_duration_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--help=all"]) == 0
    help_text = capsys.readouterr().out
    assert "--max-num-seqs NUMBER" in help_text
    [line] = [line for line in help_text.splitlines() if line.startswith("DURATION is")]
    examples = line.partition(" is ")[2].partition(" (")[0].replace(" or ", ", ").split(", ")
    assert [parse_duration(text) for text in examples] == [0.25, 1.5, 90.0]
    assert parse_duration("7") == 0.007 and line.endswith(
        "a whole number without a unit is milliseconds."
    )


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the variables of settings."""
    for name in list(os.environ):
        if name.startswith("SIM_"):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("argv", [[], ["--help"], ["help"], ["", ""]])
def test_help_of_all_commands_fits_one_screen(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(argv) == 0
    help_lines = capsys.readouterr().out.splitlines()
    assert len(help_lines) <= 60
    assert max(map(len, help_lines)) <= 100
    commands = command.listed_commands()
    first = help_lines.index("Commands (each has a --help):") + 1
    assert help_lines[first : first + len(commands)] == [
        f"  {name:<12}{listed_command.about}" for name, listed_command in commands.items()
    ]


@pytest.mark.parametrize(
    ("argv", "present", "absent"),
    [
        (["--help=all"], "--max-num-seqs NUMBER", "matching"),
        (["run", "--help"], "--max-num-seqs NUMBER", "matching"),
        (["--help=https"], "--ssl-certfile", "--max-num-seqs"),
        (["--help=max_num"], "--max-num-seqs", "--ssl-certfile"),
        (["run", "--help=max-num"], "--max-num-seqs", "--ssl-certfile"),
        (["--help=sizzle"], "No group or arguments matching 'sizzle'", "--ssl-certfile"),
    ],
)
def test_help_shows_all_settings_or_those_that_match(
    argv: list[str], present: str, absent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(argv) == 0
    help_text = capsys.readouterr().out
    assert present in help_text
    assert absent not in help_text


@pytest.mark.parametrize("name", ["run", "serve"])
def test_help_of_a_server_fits_one_screen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([name, "--help"]) == 0
    help_lines = capsys.readouterr().out.splitlines()
    assert "Examples:" in help_lines
    assert any("--help=all" in line for line in help_lines)
    assert len(help_lines) <= 60
    assert max(map(len, help_lines)) <= 100


def test_version_command_prints_the_same_as_the_version_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for word in ("version", "--version"):
        assert command.main([word]) == 0
        assert capsys.readouterr().out == f"understudy {VERSION} (vLLM 0.32.0)\n"


@pytest.mark.parametrize(
    ("argv", "release"),
    [
        (["serve", "--version"], "0.32.0"),
        (["serve", "model", "--version"], "0.32.0"),
        (["serve", "--vllm-version", "0.33", "--version"], "0.33.0"),
        (["--vllm-version", "0.33", "--version"], f"understudy {VERSION} (vLLM 0.33.0)"),
    ],
)
def test_printed_version_matches_the_simulated_vllm_release(
    argv: list[str], release: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(argv) == 0
    assert capsys.readouterr() == (f"{release}\n", "")


def test_error_for_an_unknown_vllm_version_lists_the_supported_versions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["--vllm-version", "0.9"]) == 1
    error = capsys.readouterr().err
    assert "vllm-version" in error and "0.10" in error and "0.33" in error
    assert error.count("\n") == 1


def test_vllm_version_flag_prints_a_purely_numeric_version(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["vllm", "--version"]) == 0
    last_word = capsys.readouterr().out.splitlines()[-1].split()[-1]
    assert tuple(int(part) for part in last_word.split(".")) >= (0, 22, 0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Command lines that the process would have become; its environment and folder are put back."""
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "environ", {"SIM_SEED": "1"})
    monkeypatch.setattr(os, "execv", lambda path, argv: commands.append(argv))
    monkeypatch.chdir(tmp_path)
    return commands


def test_command_starts_gunicorn_with_the_settings_from_the_flags(
    started: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--port", "8123", "--served-model-name", "a,b", "c", "--enforce-eager"]
    command.main(argv)
    (becomes,) = started
    assert becomes == [
        sys.executable, "-m", "gunicorn", "-c", str(ROOT / "gunicorn.conf.py"), "wsgi:app"
    ]  # fmt: skip
    assert Path.cwd() == ROOT
    assert load((), os.environ) == load(argv, {"SIM_SEED": "1"}, print)
    assert capsys.readouterr().err == "warning: flag --enforce-eager is accepted and ignored\n"


@pytest.mark.parametrize(
    ("argv", "environ", "host"),
    [
        (["run", "--seed", "2"], {}, "127.0.0.1"),
        (["run"], {"SIM_HOST": "10.0.0.1"}, "10.0.0.1"),
        (["run", "--host", "::1"], {}, "::1"),
        (["--seed", "2"], {}, "0.0.0.0"),
        ([], {}, "0.0.0.0"),
        (["serve"], {}, "0.0.0.0"),
    ],
)
def test_only_run_listens_on_the_loopback_address_by_default(
    argv: list[str], environ: dict[str, str], host: str, started: list[list[str]]
) -> None:
    os.environ.update(environ)
    command.main(argv)
    assert len(started) == 1
    assert load((), os.environ).server.host == host
