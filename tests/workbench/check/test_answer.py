"""The text for people: errors first, and nothing that they have not asked for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from app.core.versions.chain import changes_of
from app.core.versions.change import Answer, Default, Reading, Rules
from vllm_facts.facts import OPTIONS
from vllm_facts.version import PATCHES
from workbench.check.command import run
from workbench.check.output import CHANGES
from workbench.check.upgrade import changes_between

HOOKS = Path(__file__).parents[3] / ".pre-commit-hooks.yaml"
NOT_CHECKED = "memory not checked: --device is missing, such as --device h100"
UPGRADE = ("--vllm-version", "0.11", "--upgrade-to", "0.33")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two scripts, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text("vllm serve $M --max-lora-rank 8\nvllm serve m --seed $S\n")
    (tmp_path / "b.sh").write_text("vllm serve Qwen/Qwen3-8B --max-num-sqs 8\n")
    return tmp_path


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Returns the output."""
    run(list(words))
    return capsys.readouterr().out.splitlines()


def test_errors_of_all_files_come_before_warnings_and_notes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(capsys, "a.sh", "b.sh")
    severities = re.findall(r"^  \d+:\d+: (\w+) ", "\n".join(lines), re.MULTILINE)
    assert severities == ["error", "warning", "note", "note", "note"]
    assert lines[0] == "b.sh"
    assert lines[-1] == "1 error, 1 warning, 3 notes"


def test_changes_of_behavior_are_one_line_for_all_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(capsys, *UPGRADE, "a.sh", "b.sh")
    (line,) = [line for line in lines if "--notes" in line]
    match = re.fullmatch(r"(\d+) changes of behavior, --notes shows them", line)
    assert match is not None
    codes = re.compile(rf"note ({'|'.join(CHANGES)}): ")
    assert not any(codes.search(each) for each in lines)
    listed = lines_of(capsys, *UPGRADE, "--notes", "a.sh", "b.sh")
    messages = {codes.split(each)[-1] for each in listed if codes.search(each)}
    assert len(messages) == int(match[1])
    assert not any("--notes" in each for each in listed)


def test_quiet_prints_errors_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [line for line in lines_of(capsys, "--quiet", "a.sh", "b.sh") if ": " in line[:12]]
    assert lines_of(capsys, "--quiet", "a.sh") == []
    assert any("warning C203" in line for line in lines_of(capsys, "--quiet", "--strict", "a.sh"))


def test_memory_that_was_not_checked_is_said_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines_of(capsys, "a.sh", "b.sh").count(NOT_CHECKED) == 1
    assert NOT_CHECKED not in lines_of(capsys, "--device", "h100", "a.sh", "b.sh")
    (folder / "pod.yaml").write_text(
        "kind: Pod\nspec:\n  nodeSelector: {cloud.google.com/gke-accelerator: nvidia-l4}\n"
        "  containers: [{image: 'vllm/vllm-openai:v0.32.0', args: [Qwen/Qwen3-0.6B]}]\n"
    )
    lines = lines_of(capsys, "b.sh", "pod.yaml")
    assert NOT_CHECKED.replace("memory", "memory of 1 of 2 command lines") in lines


def test_model_without_a_shape_is_said_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "c.sh").write_text("vllm serve some/model\nvllm serve some/model --port 1\n")
    lines = lines_of(capsys, "--device", "h100", "c.sh", "--select", "M")
    assert sum("M305" in line for line in lines) == 1
    assert any("--model-config" in line for line in lines)


def test_changes_between_two_versions_are_those_of_the_later_releases() -> None:
    changes = [*changes_between("0.32", "0.33")]
    assert [change for _, change in changes] == changes_of("0.33")
    assert {name for name, _ in changes} == {"0.33"}
    assert [*changes_between("0.33", "0.33")] == []


def test_first_release_of_a_version_has_its_changes() -> None:
    assert [*changes_between("0.27.0", "0.27.1")] == []
    assert {name for name, _ in changes_between("0.26.0", "0.27.0")} == {"0.27"}
    assert {name for name, _ in changes_between("0.20.0", "0.20.2")} == {"0.20.2"}


def test_each_change_names_options_or_routes() -> None:
    """A change of requests or answers has paths; rules may hold for each server."""
    for name in PATCHES:
        for change in changes_of(name):
            holds_always = all(isinstance(form, (Rules, Default)) for form in change.forms)
            paths = [
                path
                for form in change.forms
                if isinstance(form, (Answer, Reading))
                for path in form.paths
            ]
            assert holds_always or change.options or change.routes or paths
            assert set(change.options) <= OPTIONS.keys()


@pytest.mark.parametrize(
    ("words", "areas"),
    [
        ("", set()),
        ("--enable-lora", {"Scheduler"}),
        ("--kv-offloading-size 4", {"Scheduler", "Metrics"}),
    ],
)
def test_changes_concern_the_options_of_the_line(
    capsys: pytest.CaptureFixture[str], words: str, areas: set[str]
) -> None:
    flags = ("--vllm-version", "0.32", "--upgrade-to", "0.33", "--notes", "--select", "U601")
    lines = lines_of(capsys, *flags, "--", "vllm", "serve", "Qwen/Qwen3-8B", *words.split())
    found = {line.partition("U601: ")[2].partition(":")[0] for line in lines if "U601" in line}
    assert found == areas


def test_metric_that_a_script_reads_and_the_upgrade_removes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "c.sh").write_text(
        "vllm serve m\ncurl x/metrics | grep -e vllm:gpu_cache_usage_perc -e vllm:num_requests_running\n"
    )
    lines = lines_of(capsys, *UPGRADE, "--notes", "--select", "U602", "c.sh")
    assert "  2:26: note U602: vLLM 0.33 has no metric vllm:gpu_cache_usage_perc" in lines
    assert sum("U602" in line for line in lines) == 1


# The hook


def test_hook_reads_dashboards() -> None:
    (hook,) = yaml.safe_load(HOOKS.read_text("utf-8"))
    names = ("a/dashboard.json", "values.yaml", "run.sh", "Dockerfile.gpu", "vllm.service")
    assert all(re.search(hook["files"], name) for name in names)
    assert not re.search(hook["files"], "main.py")
    assert hook["additional_dependencies"] == [".[check]"]


@pytest.mark.parametrize(
    ("name", "content", "is_named"),
    [
        ("a.json", b"{} // no JSON", False),
        ("a.json", b"\xff\xfe\x00", False),
        ("a.json", b'{"a": "' + b"x" * (2 << 20) + b'"}', False),
        ("a.yaml", b"a: [", False),
        ("a.yaml", b"{{- if x }}\nimage: vllm/vllm-openai:v0.32.0", True),
        ("a.json", b'{"a": "' + b"x" * (2 << 20) + b' vllm serve m"}', True),
        ("a.sh", b"vllm serve \xff", True),
    ],
)
def test_other_files_are_skipped_and_named_if_they_name_vllm(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, is_named: bool
) -> None:
    (folder / name).write_bytes(content)
    assert run(["--skip-others", name]) == 0
    assert ("F503" in capsys.readouterr().out) is is_named
