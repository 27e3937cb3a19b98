"""Command lines in shell code; `wire/test_bash.py` asks bash itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workbench.check.conftest import Check
from workbench.check.files import read_file
from workbench.check.text import Text


def words_of(code: str) -> list[list[str]]:
    """Returns the words of each command line in a script."""
    lines = read_file(Text("run.sh", code)).lines
    return [[word.text for word in line.words] for line in lines]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("vllm serve m --seed 1 > log.txt 2>&1 &\n", [["m", "--seed", "1"]]),
        ("(vllm serve m --seed 1) &\n", [["m", "--seed", "1"]]),
        ("vllm serve m --seed 1|tee log\n", [["m", "--seed", "1"]]),
        ("vllm serve m --seed 1;vllm serve n\n", [["m", "--seed", "1"], ["n"]]),
        ("if true; then vllm serve m; else vllm serve n; fi\n", [["m"], ["n"]]),
        ("start() { vllm serve m --seed 1; }\n", [["m", "--seed", "1"]]),
        ("bash -c 'vllm serve m & vllm serve n'\n", [["m"], ["n"]]),
        ("ssh host 'cd /x && vllm serve m --seed 1'\n", [["m", "--seed", "1"]]),
        ('tmux new -d "vllm serve m --seed 1"\n', [["m", "--seed", "1"]]),
        ("echo 'vllm serve m --seed 1'\n", []),
        ("log 'Starting vllm serve on port 8000'\n", []),
        ("pkill -f 'vllm serve'\n", []),
        ("X=$(vllm serve m --seed 1)\n", []),
        ('C="vllm serve m --seed 1"\nexec $C\n', [["m", "--seed", "1"]]),
        ('C="vllm serve $M"\nC="$C --seed 1"\n$C\n', [["$M", "--seed", "1"]]),
        ('C="vllm serve m --json \'{\\"a\\": 1}\'"\neval "$C"\n', [["m", "--json", '{"a": 1}']]),
        ('f() { local a=(--seed 1); vllm serve m "${a[@]}"; }\n', [["m", "--seed", "1"]]),
        ('A=(\n  --seed 1 # one\n)\nvllm serve m "${A[@]}"\n', [["m", "--seed", "1"]]),
        (
            "cat > run.sh <<'EOF'\nvllm serve m --seed 1\nEOF\nvllm serve n\n",
            [["m", "--seed", "1"], ["n"]],
        ),
        ("python3 - <<EOF\nvllm serve m\nEOF\n", []),
    ],
)
def test_commands_of_a_script(code: str, words: list[list[str]]) -> None:
    assert words_of(code) == words


LOST = "vllm serve m \\\n  --seed 1\n  --port 9000 \\\n  --enable-prefix-caching\n"


@pytest.mark.parametrize(
    ("code", "line", "fix"),
    [
        (LOST, 3, "end line 2 with a backslash"),
        (LOST.replace("vllm serve", "docker run vllm/vllm-openai:v0.32.0"), 3, "end line 2"),
        ("docker run --gpus all\n  -p 1:1 vllm/vllm-openai:v0.32.0 m\n", 2, "end line 1"),
        ("docker run --gpus all\n  vllm/vllm-openai:v0.32.0 m\n", 2, "end line 1"),
        ("vllm serve m \\\n\n  --port 1\n", 3, "between line 1"),
        ("vllm serve m \\\n  # why\n  --port 1\n", 3, "move the comment"),
        ("vllm serve m \\ \n  --port 1\n", 1, "remove what is behind the backslash"),
        ("vllm serve m --seed 1 # why\n  -tp 2\n", 2, "move the comment"),
    ],
)
def test_options_behind_the_end_of_a_command_are_an_error(
    check: Check, tmp_path: Path, code: str, line: int, fix: str
) -> None:
    (tmp_path / "run.sh").write_text(code)
    found = [each for each in check("run.sh") if each["code"].startswith("O")]
    assert [(each["code"], each["line"]) for each in found] == [("O115", line)]
    assert fix in found[0]["fix"]


def test_options_behind_the_end_are_no_part_of_the_command_line() -> None:
    assert words_of(LOST) == [["m", "--seed", "1"]]


def test_options_of_a_script_in_a_container_can_be_lost(check: Check, tmp_path: Path) -> None:
    pod = {"image": "vllm/vllm-openai:v0.32.0", "command": ["bash", "-c"], "args": [LOST]}
    (tmp_path / "pod.json").write_text(json.dumps({"kind": "Pod", "spec": {"containers": [pod]}}))
    assert [each["code"] for each in check("pod.json --select O")] == ["O115"]


@pytest.mark.parametrize(
    "words",
    [
        "vllm serve <your model> --port <PORT> --max-model-len YOUR_LENGTH -tp {{TP}}",
        "vllm serve {{MODEL}} --port=<PORT> --max-num-seqs __COUNT__ --seed @SEED@",
        "vllm serve your-org/your-model --port REPLACE_ME --seed ... --dtype <DTYPE>",
    ],
)
def test_placeholder_is_one_note_and_no_error(check: Check, tmp_path: Path, words: str) -> None:
    (tmp_path / "run.sh").write_text(f"{words}\n{words}\n")
    findings = check("run.sh")
    assert {each["code"] for each in findings} == {"F501"}
    assert len(findings) == 4


def test_marks_of_a_chat_are_no_placeholders(check: Check, tmp_path: Path) -> None:
    text = """vllm serve Qwen/Qwen3-8B --reasoning-config '{"reasoning_start_str": "<think>"}'\n"""
    (tmp_path / "run.sh").write_text(text)
    assert check("run.sh") == []


@pytest.mark.parametrize("version", ["0.8", "0.12", "0.20", "0.32", "0.33"])
@pytest.mark.parametrize("words", ["-O3", "-O0", "-O=2", "-O 1", "-qfp8", "-q=fp8", "-q fp8"])
def test_value_can_be_glued_to_a_short_option(check: Check, version: str, words: str) -> None:
    assert check(f"--vllm-version {version} -- vllm serve Qwen/Qwen3-8B {words}") == []


def test_short_option_of_two_letters_needs_a_blank(check: Check) -> None:
    assert [each["code"] for each in check("-- vllm serve Qwen/Qwen3-8B -tp2")] == ["O112"]


@pytest.mark.parametrize(
    ("command", "count"), [("bench forward --case a=1 --case b=2", 0), ("serve --case a=1", 1)]
)
def test_module_with_another_command_is_no_server(
    check: Check, tmp_path: Path, command: str, count: int
) -> None:
    (tmp_path / "run.sh").write_text(
        "vllm serve Qwen/Qwen3-8B\n"
        f"torchrun --nproc-per-node=4 -m vllm.entrypoints.cli.main {command} --model Qwen/Qwen3-8B\n"
    )
    assert [each["code"] for each in check("run.sh")] == ["O101"] * count
