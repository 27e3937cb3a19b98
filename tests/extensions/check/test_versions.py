"""Options, variables, and changes by version of vLLM."""

from __future__ import annotations

import pytest

from app.extensions.check.upgrade import changed_defaults
from config.vllm.history import read_history
from tests.extensions.check.conftest import Check


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
