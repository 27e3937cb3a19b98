"""Options, variables, and changes by version of vLLM."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from tests.workbench.check.conftest import Check
from vllm_facts.history import read_history
from workbench.check.findings import Place
from workbench.check.upgrade import changed_defaults
from workbench.check.upgrade_steps import unknown_steps

PLACE = Place("run.sh", 1, 1)
VERSIONS = re.compile(r"[\d.]+( (to|and|is earlier than) [\d.]+)?")
RELEASES = {f"0.{minor}": f"0.{minor}.0" for minor in range(6, 34) if minor != 15}
"""Releases of a history that lacks a version."""


@pytest.mark.parametrize(
    ("version", "words", "codes"),
    [
        ("0.11", "--swap-space 4", []),
        ("0.18", "--swap-space 4", ["O102"]),
        ("v0.17.1", "--swap-space 4 --disable-log-requests", ["O103"]),
        ("0.9", "--device cuda", []),
        ("0.10", "--device cuda", ["O102"]),
        ("0.12", "--attention-config {}", ["O107"]),
        ("0.13", "--attention-config {}", []),
        ("0.15", "--reasoning-config {}", ["O107"]),
        ("v0.15.1", "--attention-config {}", []),
        ("0.32", "--reasoning-effort-map {}", ["O107"]),
        ("0.33", "--reasoning-effort-map {}", []),
    ],
)
def test_option_is_known_from_its_first_to_its_last_version(
    check: Check, version: str, words: str, codes: list[str]
) -> None:
    findings = check(f"--vllm-version {version} -- vllm serve Qwen/Qwen3-8B {words}")
    assert [each["code"] for each in findings] == codes


def test_upgrade_adds_what_the_new_version_rejects(check: Check) -> None:
    words = "--vllm-version 0.11 --upgrade-to 0.33 --select O -- vllm serve Qwen/Qwen3-8B"
    findings = check(f"{words} --swap-space 4 --max-num-sqs 8")
    assert [(each["code"], each["column"]) for each in findings] == [("O102", 26), ("O101", 41)]


def test_all_flaws_of_a_line_are_reported(check: Check) -> None:
    findings = check(
        "-- vllm serve Qwen/Qwen3-8B --max-num-seqs x --block-size y --foo 1 --dtype z"
        " --enable-auto-tool-choice --max-model-len 100000 second"
    )
    assert [each["code"] for each in findings] == [
        "O104", "O104", "O101", "O104", "C201", "D403", "O112",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("--spec-method ngram --speculative-config.synthetic_acceptance_length 2", ["C206"]),
        ("--speculative-config.method ngram --speculative-config.num_speculative_tokens 3", []),
        ("--spec-method ngram --spec-tokens 3", []),
    ],
)
def test_synthetic_length_needs_its_rejection_method(
    check: Check, words: str, codes: list[str]
) -> None:
    findings = check(f"--vllm-version 0.32 -- vllm serve Qwen/Qwen3-8B {words}")
    assert [each["code"] for each in findings] == codes


def test_upgrade_names_the_defaults_that_change(check: Check) -> None:
    words = "--select U603 --vllm-version {} --upgrade-to 0.33 -- vllm serve Qwen/Qwen3-8B"
    messages = [each["message"] for each in check(words.format("0.17"))]
    assert [message.split()[3] for message in messages] == [
        "--max-num-batched-tokens", "--allowed-origins", "--gpu-memory-utilization",
        "--mamba-cache-mode", "--safetensors-load-strategy",
    ]  # fmt: skip
    assert "is empty since 0.32, and * before" in messages[1]
    assert "--gpu-memory-utilization is 0.92 since 0.20, and 0.9 before" in messages[2]
    given = ' --gpu-memory-utilization 0.9 --allowed-origins [\\"*\\"]'
    assert len(check(f"{words.format('0.17')}{given}")) == 3


@pytest.mark.parametrize(
    ("old", "new", "unknown"),
    [
        ("0.13", "0.33", ["0.13", "0.15"]),
        ("0.14", "0.16", ["0.14 and 0.16", "0.15"]),
        ("0.20", "0.21", []),
        ("0.17", "0.18", ["0.17 and 0.18"]),
        ("0.18", "0.19", ["0.18"]),
        ("0.31", "0.33", []),
        ("0.32", "0.33", []),
        ("0.33", "0.33", []),
        ("0.33", "0.20", ["0.20 is earlier than 0.33"]),
        ("0.20.1", "0.20.1", []),
        ("0.18.0", "0.18.2", ["0.18"]),
        ("0.20.0", "0.20.2", []),
        ("0.27.0", "0.27.1", []),
        ("0.6", "0.33", ["0.7 to 0.10", "0.15"]),
        ("0.9", "0.10", ["0.10"]),
        ("0.6", "0.9", ["0.7 to 0.9"]),
    ],
)
def test_upgrade_names_the_steps_that_it_does_not_know(
    old: str, new: str, unknown: list[str]
) -> None:
    history = replace(read_history(), releases=RELEASES)
    findings = unknown_steps(old, new, history, PLACE)
    named = [VERSIONS.search(each.message) for each in findings]
    assert [match and match[0] for match in named] == unknown


def test_upgrade_over_unknown_behavior_has_a_note(check: Check) -> None:
    words = "--select U606 --vllm-version {} --upgrade-to 0.33 -- vllm serve Qwen/Qwen3-8B"
    assert [each["severity"] for each in check(words.format("0.12"))][:1] == ["note"]
    assert check(words.format("0.32")) == []


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [
        ("0.33", "0.32", ["U606"]),
        ("0.33", "0.33", []),
        ("0.27.0", "0.27.1", []),
        ("0.27.1rc1", "0.28", ["U603"]),
        ("0.9", "0.10", ["U603"] * 4 + ["U606"]),
        ("v0.32.0", "0.33.0rc1", ["U601", "U603", "U603"]),
        ("nightly", "latest", []),
        ("0.20.0", "0.20.2", ["U601"]),
        ("0.20.2", "0.20.2", []),
        ("0.10.1.1", "0.10.2", []),
        ("0.18.0", "0.18.2", ["U606"]),
        ("0.32+cpu", "0.33", ["U601", "U603", "U603"]),
        ("0.33", "0.6", ["U606"]),
    ],
)
def test_upgrade_between_any_two_releases_is_reported(
    check: Check, old: str, new: str, codes: list[str]
) -> None:
    line = "vllm serve Qwen/Qwen3-8B --enable-lora"
    findings = check(f"--select U601,U603,U606 --vllm-version {old} --upgrade-to {new} -- {line}")
    assert [each["code"] for each in sorted(findings, key=lambda each: each["code"])] == codes


def test_memory_that_every_server_needs_is_reported(check: Check) -> None:
    words = "--select U601 --vllm-version 0.19 --upgrade-to 0.20 -- vllm serve Qwen/Qwen3-8B"
    messages = [each["message"] for each in check(words)]
    assert [message.partition(". In ")[2].partition(":")[0] for message in messages] == [
        "0.20",
        "0.20.2",
    ]
    assert messages[0].startswith("Memory: CUDA graphs are not counted")


def test_default_that_came_back_is_no_change(check: Check) -> None:
    words = "--select U603 --vllm-version {} --upgrade-to {} -- vllm serve Qwen/Qwen3-8B"
    assert not any("--seed" in each["message"] for each in check(words.format("0.12", "0.32")))
    history = read_history()
    changes = {each.option: each for each in changed_defaults("0.6", "0.12", history)}
    assert "seed" not in changes
    changes = {each.option: each for each in changed_defaults("0.9", "0.12", history)}
    assert (changes["seed"].old, changes["seed"].new) == ("", "0")
    assert "model" not in changes


def test_default_of_an_option_without_effect_is_not_told(check: Check) -> None:
    words = "--select U603 --vllm-version 0.28 --upgrade-to 0.33 -- vllm serve Qwen/Qwen3-8B"
    assert not any("dcp-comm" in each["message"] for each in check(words))
    messages = [each["message"] for each in check(f"{words} --decode-context-parallel-size 2")]
    assert any("--dcp-comm-backend is left to vLLM since 0.29" in each for each in messages)


def test_parallelism_is_checked_without_a_device(check: Check) -> None:
    words = "--select C202 -- vllm serve Qwen/Qwen3-8B --tensor-parallel-size"
    assert [each["code"] for each in check(f"{words} 3")] == ["C202"]
    assert check(f"{words} 4") == []
    assert check("--select C202 -- vllm serve someone/model --tensor-parallel-size 3") == []


@pytest.mark.parametrize(
    ("version", "words", "fix"),
    [
        ("0.33", "--task auto", "remove --task"),
        ("0.33", "--task generate", "use --runner generate"),
        ("0.33", "--task=transcription", "use --runner generate"),
        ("0.33", "--task embed", "use --runner pooling --convert embed"),
        ("0.33", "--task=embedding", "use --runner pooling --convert embed"),
        ("0.33", "--task classify", "use --runner pooling --convert classify"),
        ("0.33", "--task score", "use --runner pooling --convert classify"),
        ("0.33", "--task reward", "use --runner pooling"),
        ("0.14", "--task reward", "use --runner pooling --convert reward"),
        ("0.33", "--task", "use --runner and --convert"),
        ("0.33", "--task other", "use --runner and --convert"),
    ],
)
def test_advice_for_a_task_keeps_what_the_model_does(
    check: Check, version: str, words: str, fix: str
) -> None:
    (found,) = check(f"--vllm-version {version} -- vllm serve Qwen/Qwen3-8B {words}")
    assert (found["code"], found["fix"]) == ("O103", fix)


@pytest.mark.parametrize("version", ["0.10", "0.12"])
def test_task_of_speech_is_known(check: Check, version: str) -> None:
    line = "vllm serve openai/whisper-large-v3 --task transcription"
    assert check(f"--vllm-version {version} -- {line}") == []
