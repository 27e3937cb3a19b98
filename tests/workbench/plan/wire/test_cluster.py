"""`understudy plan` on processes of this machine and on a Dask cluster."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.running_server import ROOT, free_port
from tests.workbench.runs.test_command import SHAPE
from workbench.plan.command import run

pytestmark = pytest.mark.timeout(
    180
)  # a cluster is four processes, which start slowly on a busy machine
LOAD = ["--rate", "4", "8", "--seconds", "10", "--goodput", "ttft:300", "tpot:12"]


@contextmanager
def cluster(workers: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yields the address of a scheduler, and its process."""
    address = f"127.0.0.1:{free_port()}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    host, _, port = address.partition(":")
    words = [
        ["dask_scheduler", "--host", host, "--port", port, "--no-show"],
        *(["dask_worker", address, "--nthreads", "1", "--no-nanny"] for _ in range(workers)),
    ]
    with ExitStack() as stack:
        processes = []
        for arguments in words:
            command = [
                sys.executable,
                "-m",
                f"distributed.cli.{arguments[0]}",
                *arguments[1:],
                "--no-dashboard",
            ]
            process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, **quiet))
            stack.callback(process.kill)
            processes.append(process)
        yield address, processes[0]


def plan_argv(folder: Path) -> list[str]:
    path = folder / "config.json"
    path.write_bytes(msgspec.json.encode(SHAPE))
    return ["--model-config", str(path), "--device", "h100=2.5", "l40s=1.1", *LOAD]


@pytest.mark.dask
def test_planning_on_a_dask_cluster_gives_the_result_of_local_planning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = plan_argv(tmp_path)
    outputs = []
    with cluster(workers=2) as (address, _):
        for place in (["--processes", "1"], ["--processes", "2"], ["--backend", f"dask={address}"]):
            assert run([*argv, *place, "--json", "-"]) == 0
            outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.dask
def test_unreachable_dask_scheduler_is_reported_in_one_line(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    argv = [*plan_argv(tmp_path), "--seconds", "1000", "--json", str(target)]
    with cluster(workers=1) as (address, scheduler):
        command = [sys.executable, "-m", "app", "plan", *argv, "--backend", f"dask={address}"]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            errors = ""
            while "planned" not in errors:
                errors += process.stderr.read(1)
            scheduler.kill()
            errors += process.stderr.read()
    assert process.returncode == 1 and not target.exists()
    print(errors)
    assert "Traceback" not in errors and errors.splitlines()[-1].strip().startswith(
        "error: --backend dask="
    )


def test_interrupting_the_plan_command_ends_all_its_processes(tmp_path: Path) -> None:
    argv = [*plan_argv(tmp_path), "--seconds", "1000", "--processes", "2"]
    command = [sys.executable, "-m", "app", "plan", *argv]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stderr is not None
        progress = ""
        while "planned" not in progress:
            progress += process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()  # ends when no process of it has the pipe any more
    assert process.returncode == 1 and "Traceback" not in errors
    assert errors.endswith("error: interrupted; nothing was written\n")
