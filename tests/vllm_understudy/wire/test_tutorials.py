"""The tutorials: their commands run as printed, and print what the pages show."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

import vllm_understudy
from tests.running_server import ROOT
from vllm_understudy.ports import free_port

DOCS = ROOT / "docs"
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"```bash\n(.*?)```", re.DOTALL)
MARK = "@@ next command @@"
FIGURE = re.compile(r"\d[\d.,]*")
START_LIMIT_S = 60.0


def commands_of(page: str) -> list[tuple[str, list[str]]]:
    """Returns each command of the page with the lines below it."""
    commands: list[tuple[str, list[str]]] = []
    for block in CONSOLE.findall((DOCS / page).read_text("utf-8")):
        for line in block.splitlines():
            if line.startswith("$ "):
                commands.append((line.removeprefix("$ "), []))
            elif line.startswith("  "):
                command, printed = commands[-1]
                commands[-1] = (f"{command}\n{line}", printed)
            else:
                commands[-1][1].append(line)
    return commands


def run_page(
    page: str, folder: Path, environment: dict[str, str], ports: dict[int, int]
) -> list[tuple[list[str], list[str]]]:
    """Runs the commands of a page; returns the shown and the printed lines of each.

    `ports` maps the ports of the page to the ports of this run.
    """
    commands = commands_of(page)
    script = "\n".join(f"{command}\necho '{MARK}'" for command, _ in commands)
    finished = subprocess.run(
        ["bash", "-ec", with_ports(script, ports)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    outputs = finished.stdout.split(f"{MARK}\n")[:-1]
    assert len(outputs) == len(commands) > 0
    return [
        ([with_ports(line, ports) for line in shown], output.splitlines())
        for (_, shown), output in zip(commands, outputs, strict=True)
    ]


def with_ports(text: str, ports: dict[int, int]) -> str:
    """Returns the text with the ports of this run."""
    for written, used in ports.items():
        text = re.sub(rf"\b{written}\b", str(used), text)
    return text


def is_printed(shown: str, printed: list[str]) -> bool:
    """Returns whether a line of the page is among the printed lines; `...` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in shown.split("..."))
    return any(re.fullmatch(pattern, line) for line in printed)


def shape(line: str) -> str:
    """Returns a line without its figures, and without the width of their columns."""
    return re.sub(r"[ =-]+", " ", FIGURE.sub("0", line))


@contextmanager
def started_pods(block: str, environment: dict[str, str], ports: list[int]) -> Iterator[None]:
    """Runs a block of the page that starts servers, and waits until each of them answers."""
    process = subprocess.Popen(
        ["bash", "-c", f"{block}\nwait"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        for port in ports:
            while not is_healthy(port):
                assert time.monotonic() < deadline, f"no server at port {port}"
                time.sleep(0.05)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def is_healthy(port: int) -> bool:
    """Returns whether a server answers."""
    try:
        return requests.get(f"http://127.0.0.1:{port}/health", timeout=5).ok
    except requests.ConnectionError:
        return False


@pytest.mark.curl
def test_first_minutes_tutorial_prints_the_documented_output(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with vllm_understudy.running_server(seed=None) as server:
        outputs = run_page("tutorial-first-minutes.md", tmp_path, environment, {8000: server.port})
    for shown, printed in outputs:
        assert [line for line in shown if not is_printed(line, printed)] == []


@pytest.mark.timeout(300)
def test_client_tutorial_prints_the_documented_output(
    environment: dict[str, str], tmp_path: Path
) -> None:
    outputs = run_page("tutorial-client.md", tmp_path, environment, {})
    for shown, printed in outputs:
        # pytest fills its last line with fewer signs when a run takes ten seconds or more.
        lines = [re.sub("=+", "=", line) for line in printed]
        missing = [line for line in shown if not is_printed(re.sub("=+", "=", line), lines)]
        assert missing == []


@pytest.mark.curl
@pytest.mark.timeout(300)
def test_router_tutorial_prints_the_documented_output(
    environment: dict[str, str], tmp_path: Path
) -> None:
    page = (DOCS / "tutorial-router.md").read_text("utf-8")
    first = free_port(3)
    ports = {8001 + rank: first + rank for rank in range(3)}
    block = with_ports(SHELL.findall(page)[0], ports)
    with started_pods(block, environment, [*ports.values()]):
        outputs = run_page("tutorial-router.md", tmp_path, environment, ports)
    *exact, (shown_table, printed_table) = outputs
    for shown, printed in exact:
        assert shown == printed
    assert [*map(shape, shown_table)] == [*map(shape, printed_table)]


@pytest.mark.timeout(300)
def test_planning_tutorial_prints_the_documented_output(
    environment: dict[str, str], tmp_path: Path
) -> None:
    outputs = run_page("tutorial-plan.md", tmp_path, environment, {})
    for shown, printed in outputs:
        shapes = [*map(shape, printed)]
        assert [line for line in map(shape, shown) if not is_printed(line, shapes)] == []


SHORTER = {"120": "16", "126s": "22s", "15s": "4s", "policy random": "policy random --limit 10"}
"""Times of the fleet tutorial, and those of its test; a busy machine has large errors."""


@pytest.mark.timeout(300)
def test_fleet_tutorial_runs_as_documented(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (DOCS / "tutorial-fleet.md").read_text("utf-8")
    first = free_port(4)
    ports = {8001 + rank: first + rank for rank in range(4)}
    block = with_ports(SHELL.findall(page)[0], ports)
    for written, used in SHORTER.items():
        page = re.sub(rf"\b{written}\b", used, page)
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr("tests.vllm_understudy.wire.test_tutorials.DOCS", tmp_path)
    with started_pods(block, environment, [*ports.values()]):
        outputs = run_page("page.md", tmp_path, environment, ports)
    _, taken, compared, planned, asked, replayed = ["\n".join(printed) for _, printed in outputs]
    assert "fleet: understudy-tiny on 4 pods" in taken
    assert "TTFT within" in compared
    assert "Cheapest: " in planned
    assert (tmp_path / "report.html").is_file()
    assert "| device=h200" in asked
    assert "0 failures" in replayed
