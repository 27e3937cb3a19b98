"""`python -m app`: exit status, one line on stderr, and what gunicorn is started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli as command
from config import VERSION
from config.durations import parse_duration
from config.loader import load

ROOT = Path(__file__).parents[2]


def run(*argv: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: text for name, text in os.environ.items() if not name.startswith("SIM_")}
    return subprocess.run(
        [sys.executable, "-m", "app", *argv],
        cwd=ROOT,
        env=clean | environ,
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--port", "0"], "error: setting port: '0' (flag --port) must be between 1 and 65535\n"),
        (["--prot", "1"], "error: unknown flag --prot; did you mean --port?\n"),
        (["--config", "/nowhere"], "error: YAML file /nowhere: cannot be read: No such file or directory\n"),
    ],
)
def test_a_wrong_setting_ends_with_status_1_and_one_line(argv: list[str], line: str) -> None:
    done = run(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)


def test_a_wrong_variable_ends_with_status_1_and_one_line() -> None:
    done = run(SIM_MAX_NUM_SEQS="none")
    assert done.returncode == 1
    assert done.stderr == (
        "error: setting max-num-seqs: 'none' (environment variable SIM_MAX_NUM_SEQS) "
        "must be a whole number (of at most 64 bits)\n"
    )


def test_help_and_version_end_with_status_0() -> None:
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--max-num-seqs NUMBER" in done.stdout
    assert run("--version").stdout == f"understudy {VERSION}\n"


def test_the_help_tells_what_a_duration_is() -> None:
    [line] = [line for line in run("--help").stdout.splitlines() if line.startswith("DURATION is")]
    examples = line.partition(" is ")[2].partition(" (")[0].replace(" or ", ", ").split(", ")
    assert [parse_duration(text) for text in examples] == [0.25, 1.5, 90.0]
    assert parse_duration("7") == 0.007 and line.endswith("a whole number without a unit is milliseconds.")


@pytest.mark.parametrize("command", [(), ("serve",), ("dataset",), ("fleet",)])
def test_help_for_a_reader_who_leaves_is_no_error(command: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "app", *command, "--help"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_the_help_names_the_other_commands() -> None:
    told = run("--help").stdout.splitlines()[-11:]
    names = (
        "serve",
        "dataset",
        "fleet",
        "simulate",
        "record",
        "drift",
        "calibrate",
        "rehearse",
        "script",
        "generate",
        "plugins",
    )
    assert told == [f"  python -m app {name} --help" for name in names]


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["serve", "--help"],
        ["dataset", "--help"],
        ["fleet", "--help"],
        ["record", "--help"],
        ["record", "--proxy", "--help"],
        ["drift", "--help"],
        ["calibrate", "--help"],
        ["rehearse", "--help"],
    ],
)
def test_a_reader_that_goes_early_gets_no_traceback(argv: list[str], unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command_line = [sys.executable, "-m", "app", *argv]
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command_line, cwd=ROOT, env=environ, stdout=writing, stderr=subprocess.PIPE, timeout=50
    )
    os.close(writing)
    assert done.stderr == b""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Command lines that the process would have become; its environment and folder are put back."""
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "environ", {"SIM_SEED": "1"})
    monkeypatch.setattr(os, "execv", lambda path, argv: commands.append(argv))
    monkeypatch.chdir(tmp_path)
    return commands


def test_gunicorn_is_started_in_the_project_with_the_same_settings(
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
