"""`understudy fleet`, as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.running_server import ROOT
from workbench.fleet import command
from workbench.fleet.fleet import Fleet

SMALL = ["--requests", "6", "--groups", "2", "--prefix-tokens", "64", "--no-png"]


@contextmanager
def begun(*argv: str) -> Iterator[subprocess.Popen[str]]:
    whole = [sys.executable, "-m", "app", "fleet", *argv]
    with subprocess.Popen(
        whole, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def servers(fleet: subprocess.Popen[str]) -> list[int]:
    return [
        int(pid) for pid in Path(f"/proc/{fleet.pid}/task/{fleet.pid}/children").read_text().split()
    ]


def are_gone(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pods", "0"], "argument --pods: '0' must be a whole number from 1 to 64"),
        (["--rate", "-1"], "argument --rate: '-1' must be a number greater than 0"),
        (
            ["--rate", "2", "--concurrency", "3"],
            "argument --concurrency: not allowed with argument --rate",
        ),
        (["--png", "/nowhere/at/all.png"], "/nowhere/at/all.png: folder not found: /nowhere/at"),
        (["--port", "1"], "flag --port cannot be used, because the fleet sets it"),
        (["--podz", "1"], "unknown flag --podz; did you mean --pods?"),
        (["--block-size", "0"], "flag --block-size"),
        (
            [*SMALL, "--pods", "1", "--dataset-path", "/nowhere.sqlite3"],
            "file not found: /nowhere.sqlite3",
        ),
    ],
)
def test_invalid_fleet_flags_are_rejected_with_a_one_line_error(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = message.startswith(("argument", "unknown", "flag --port"))
    assert command.run(argv) == (2 if usage else 1)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert (
        printed.err.startswith("error: ")
        and message in printed.err
        and printed.err.count("\n") == 1
    )


def test_fleet_command_prints_a_table_and_writes_figures(
    fleet: Fleet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def the_same_fleet(*args: object, **kwargs: object) -> Iterator[Fleet]:
        yield fleet

    monkeypatch.setattr(command, "running_fleet", the_same_fleet)
    path = tmp_path / "figures.json"
    flags = [
        "--pods",
        "2",
        "--policies",
        "round-robin",
        "prefix-aware",
        "--json",
        str(path),
        "--rate",
        "100",
    ]
    assert command.run([*SMALL, *flags]) == 0
    rows = [line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == ["round-robin", "prefix-aware"]
    figures = json.loads(path.read_text())
    assert figures["options"]["rate"] == 100 and figures["options"]["concurrency"] is None
    assert [policy["requests"] - policy["failed"] for policy in figures["policies"]] == [6, 6]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_interrupting_a_served_fleet_ends_all_its_processes() -> None:
    with begun("--pods=1", "--serve", "--policies", "random", "prefix-aware", *SMALL) as fleet:
        assert fleet.stdout is not None and fleet.stderr is not None
        lines = [fleet.stdout.readline() for _ in range(4)]
        names = [line.partition(": http://")[0] for line in lines]
        assert names == ["proxy, random", "proxy, prefix-aware", "pod 0", "indexer"]
        started = servers(fleet)
        assert len(started) == 2
        os.kill(fleet.pid, signal.SIGINT)
        assert fleet.wait(10) == 0
        assert are_gone(started)
        assert "error" not in fleet.stderr.read()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_interrupting_the_startup_of_a_fleet_ends_all_its_processes() -> None:
    with begun("--pods", "1", *SMALL) as fleet:
        assert fleet.stderr is not None
        while len(started := servers(fleet)) < 2:
            pass
        os.kill(fleet.pid, signal.SIGTERM)
        assert fleet.wait(10) == 1
        assert are_gone(started)
        assert fleet.stderr.read() == "error: interrupted; nothing was written\n"
