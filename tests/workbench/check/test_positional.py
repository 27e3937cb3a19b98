"""Positional parameters of scripts in Compose files, pods, `docker run`, and `set --`."""

from __future__ import annotations

from pathlib import Path
from time import process_time

import pytest

from tests.workbench.check.conftest import Check
from workbench.check.files import read_file
from workbench.check.text import Text

COMPOSE = """services:
  vllm:
    image: vllm/vllm-openai:v0.27.1
    entrypoint:
      - bash
      - -c
      - |
        exec vllm serve "$$@"
      - --
    command: [--model, Qwen/Qwen3-32B, --swap-space, "4", --no-such-option]
"""
WORDS = "-- vllm m --seed 1 'a b'"
LONG = 3_000


def words_of(code: str) -> list[list[str]]:
    """Returns the words of each command line in a script."""
    lines = read_file(Text("run.sh", code)).lines
    return [[word.text for word in line.words] for line in lines]


def test_words_of_a_compose_command_are_the_parameters_of_its_script(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    found = [(each["code"], each["line"]) for each in check("compose.yaml")]
    assert found == [("O102", 10), ("O101", 10)]


def test_arguments_of_a_pod_are_the_parameters_of_its_script(check: Check, tmp_path: Path) -> None:
    text = (
        "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.32.0\n"
        "    command: [sh, -c, 'exec vllm serve \"$@\"', sh]\n    args: [m, --no-such-option]\n"
    )
    (tmp_path / "pod.yaml").write_text(text)
    assert [(each["code"], each["line"]) for each in check("pod.yaml --select O")] == [("O101", 6)]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('exec "$1" serve "${@:2}"', ["m", "--seed", "1", "a b"]),
        ('shift; exec vllm serve "$@"', ["m", "--seed", "1", "a b"]),
        ('shift 2; exec vllm serve n "$@"', ["n", "--seed", "1", "a b"]),
        ('exec vllm serve "${2}" --seed "$4"', ["m", "--seed", "1"]),
        ('exec vllm serve "$2" --seed=${4} ${9:-x}', ["m", "--seed=1", "x"]),
        ("exec vllm serve $2 ${@:5}", ["m", "a", "b"]),
        ('exec vllm serve m --name "$*"', ["m", "--name", "vllm m --seed 1 a b"]),
        ("exec vllm serve m --seed $# --name $0", ["m", "--seed", "5", "--name", "--"]),
        ('set -e; M="$2"; exec vllm serve $M', ["m"]),
        ('set -eu -- n --seed 2; exec vllm serve "$@"', ["n", "--seed", "2"]),
        ('set -o pipefail; exec vllm serve "${@:2:1}"', ["m"]),
        ('A=("${@:2:3}"); exec vllm serve "${A[@]}"', ["m", "--seed", "1"]),
        ('f() { vllm serve "$@"; }; f n', ["$@"]),
        ('while [ $# -gt 3 ]; do shift; done; vllm serve "$@"', ["$@"]),
    ],
)
def test_parameters_of_a_script(script: str, words: list[str]) -> None:
    assert words_of(f"bash -euc '{script}' {WORDS}\n") == [words]


def test_parameters_of_a_container() -> None:
    start = "docker run --entrypoint bash vllm/vllm-openai:v0.32.0 -c"
    assert words_of(f"{start} 'exec vllm serve \"$@\"' -- m --seed 1\n") == [["m", "--seed", "1"]]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("X=1\nvllm serve m ${X:+--seed 1}\n", ["m", "--seed", "1"]),
        ("X=\nvllm serve m ${X:+--seed 1}\n", ["m"]),
        ("vllm serve m ${X:+--seed 1}\n", ["m", "${X:+--seed 1}"]),
    ],
)
def test_option_of_a_variable_that_is_set(code: str, words: list[str]) -> None:
    assert words_of(code) == [words]


def test_parameters_that_a_script_sets() -> None:
    code = 'set -- m --seed 1\nset -- "$@" --port 9000\nvllm serve "$@"\n'
    assert words_of(code) == [["m", "--seed", "1", "--port", "9000"]]
    assert words_of('vllm serve "$@"\n') == [["$@"]]


@pytest.mark.parametrize(
    "code",
    [
        "set -- a\n" + "shift\n" * 40_000,
        f"set -- {'a ' * LONG}\n" + "shift\n" * 40_000,
        f"set -- {'a ' * LONG}\n" + 'set -- "$@" b\n' * 15_000,
        f"set -- {'a ' * LONG}\n" + 'x "$@"\n' * 30_000,
        f"set -- {'a ' * LONG}\n" + 'x "y$*"\n' * 25_000,
        f"set -- {'a ' * LONG}\n" + 'shift; x "y$*"\n' * 12_000,
        "set -- " + '"" ' * LONG + "\n" + 'x "$@"\n' * 30_000,
        "set -- a\n" + 'set -- "$*$*"\n' * 18_000,
        "f() { f; }\n" * 20_000 + 'vllm serve "$@"\n',
        "shift 99999999999999999999\n" * 9_000,
        "x ${@:99999999999:9999999999} ${99999}\n" * 6_000,
        "bash -c " * 30_000,
        'bash -c \'bash -c "x"\' "$@"\n' * 9_000,
        " " * 250_000 + "f",
        "a-" * 120_000,
    ],
)
def test_hostile_script_ends_soon(code: str) -> None:
    start = process_time()
    words_of(code)
    assert process_time() - start < 2
