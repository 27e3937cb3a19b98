"""What a run of vLLM's tests reports, and where its files lie."""

import json
from pathlib import Path

import pytest

from fidelity.judge import __main__ as judge
from fidelity.judge.environment import environment_of
from fidelity.judge.understudy_outcomes import (
    OUTCOMES,
    pytest_collectreport,
    pytest_runtest_logreport,
)
from vllm_facts.version import PATCHES


def report_of(when: str, outcome: str) -> pytest.TestReport:
    return pytest.TestReport("a.py::test", ("a.py", 1, "test"), {}, outcome, None, when)  # type: ignore[arg-type]


def test_file_that_cannot_be_collected_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pytest_collectreport(pytest.CollectReport("a.py", "passed", None, []))
    pytest_collectreport(pytest.CollectReport("b.py", "failed", "ImportError: vllm", []))
    for when in ("setup", "call", "teardown"):
        pytest_runtest_logreport(report_of(when, "passed"))
    assert len((tmp_path / OUTCOMES).read_text().splitlines()) == 2
    outcomes = judge.read_outcomes(tmp_path)
    assert outcomes == {"b.py": "failed", "a.py::test": "passed"}
    assert judge.report(outcomes, {}) == 1
    assert "NEW FAILURE: b.py" in capsys.readouterr().out
    assert judge.report(outcomes, {"b.py": "glue"}) == 0


def test_failure_in_the_teardown_counts_as_a_failure_of_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pytest_runtest_logreport(report_of("call", "passed"))
    pytest_runtest_logreport(report_of("teardown", "failed"))
    assert judge.read_outcomes(tmp_path) == {"a.py::test": "failed"}


@pytest.mark.parametrize(("status", "result"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1), (-9, 1)])
def test_early_exit_of_pytest_fails_the_run(status: int, result: int) -> None:
    assert judge.report_status(status) == result


@pytest.mark.parametrize(("name", "release"), PATCHES.items())
def test_each_version_is_simulated_in_a_separate_folder(
    name: str, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, ...]] = []

    def prepare(folder: Path, version: str) -> Path:
        folder.mkdir()
        seen.append((folder.name, version))
        return folder / "python"

    def run(python: Path, folder: Path, tests: object, simulated_version: str) -> int:
        seen.append((folder.name, simulated_version))
        (folder / OUTCOMES).write_text(json.dumps({"test": "a.py::test", "outcome": "passed"}))
        return 0

    monkeypatch.setattr(judge, "prepare", prepare)
    monkeypatch.setattr(judge, "run", run)
    monkeypatch.setattr("sys.argv", ["judge", "--folder", str(tmp_path), "--version", release])
    assert judge.main() == 0
    assert seen == [(release, release), (release, name)]


def test_judge_servers_simulate_the_requested_vllm_version() -> None:
    environment = environment_of(Path("folder"), Path("plugins"), Path("checkout"), "0.33")
    assert environment["UNDERSTUDY_VLLM_VERSION"] == "0.33"


def test_files_that_a_version_lacks_are_named_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files.txt"
    files.write_text("old/test_a.py\nnew/test_b.py\n")
    monkeypatch.setattr(judge, "FILES", files)
    folder = tmp_path / "0.32.0"
    (folder / "tests/entrypoints/old").mkdir(parents=True)
    (folder / "tests/entrypoints/old/test_a.py").touch()
    assert judge.listed_files(folder) == ["tests/entrypoints/old/test_a.py"]
    notice = "not in the tests of vLLM 0.32.0: tests/entrypoints/new/test_b.py\n"
    assert capsys.readouterr().out == notice
