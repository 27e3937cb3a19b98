"""Formats, selections, comments, and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from workbench.check.command import run
from workbench.check.rules import RULES

SARIF_SCHEMA = Path(__file__).with_name("sarif-2.1.0.json")
FLAWED = ["--", "vllm", "serve", "Qwen/Qwen3-8B", "--swap-space", "4", "--max-lora-rank", "32"]


def report(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """Returns the output for a line with an error (O102) and a warning (C203)."""
    run([*flags, *FLAWED])
    return capsys.readouterr().out


def test_text_marks_the_word_and_counts_the_findings(capsys: pytest.CaptureFixture[str]) -> None:
    lines = report(capsys).splitlines()
    assert lines[0] == "<command line>"
    assert lines[1] == "  1:26: error O102: vLLM 0.18 removed --swap-space"
    assert lines[3].index("^") == lines[2].index("--swap-space")
    assert lines[-1] == "1 error, 1 warning, 0 notes"


def test_json_has_a_list_of_findings(capsys: pytest.CaptureFixture[str]) -> None:
    findings = json.loads(report(capsys, "--format", "json"))["findings"]
    assert findings[0] == {
        "code": "O102",
        "severity": "error",
        "file": "<command line>",
        "line": 1,
        "column": 26,
        "message": "vLLM 0.18 removed --swap-space",
        "fix": "remove --swap-space",
    }


def test_workflow_commands_escape_their_text(capsys: pytest.CaptureFixture[str]) -> None:
    first = report(capsys, "--format", "github").splitlines()[0]
    assert first == (
        "::error file=<command line>,line=1,col=26::O102: vLLM 0.18 removed --swap-space"
        " (fix: remove --swap-space)"
    )
    run(["--format", "github", "--", "vllm", "serve", "a", "--max-num-seqs", "5%\n"])
    assert "5%25" in capsys.readouterr().out


def test_sarif_has_a_rule_for_each_result(capsys: pytest.CaptureFixture[str]) -> None:
    document: dict[str, Any] = json.loads(report(capsys, "--format", "sarif"))
    assert document["version"] == "2.1.0"
    (sarif_run,) = document["runs"]
    assert {rule["id"] for rule in sarif_run["tool"]["driver"]["rules"]} == set(RULES)
    for result in sarif_run["results"]:
        assert result["ruleId"] in RULES
        assert result["level"] in ("error", "warning", "note")
        region = result["locations"][0]["physicalLocation"]["region"]
        assert region["startLine"] >= 1 and region["startColumn"] >= 1


@pytest.mark.parametrize("words", [FLAWED, ["--", "vllm", "serve", "\u2028", "--tool-parser="]])
def test_sarif_is_valid_by_the_official_schema(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    schema = json.loads(SARIF_SCHEMA.read_bytes())
    run(["--format", "sarif", *words])
    document = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft7Validator(
        schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
    )
    assert [error.message for error in validator.iter_errors(document)] == []
    document["runs"][0]["results"][0]["level"] = "fatal"
    assert list(validator.iter_errors(document))


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ([], 1),
        (["--ignore", "O102"], 0),
        (["--ignore", "O102", "--strict"], 1),
        (["--select", "C2"], 0),
        (["--select", "O"], 1),
        (["--select", "X9"], 2),
        (["--upgrade-to", "9.9"], 2),
    ],
)
def test_exit_status(flags: list[str], status: int) -> None:
    assert run([*flags, *FLAWED]) == status


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("vllm serve a --swap-space 4 --max-num-sqs 1\n", ["D407", "O102", "O101"]),
        (
            "vllm serve a --swap-space 4 --max-num-sqs 1 # understudy: ignore=O102\n",
            ["D407", "O101"],
        ),
        ("# understudy: ignore=O,D4\nvllm serve a --swap-space 4\n", []),
        ("vllm serve a # understudy: ignore\n", []),
        ("# understudy: ignore\n\nvllm serve a\n", ["D407"]),
    ],
)
def test_comments_ignore_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, codes: list[str]
) -> None:
    path = tmp_path / "run.sh"
    path.write_text(text)
    run(["--format", "json", str(path)])
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each["code"] for each in findings] == codes
