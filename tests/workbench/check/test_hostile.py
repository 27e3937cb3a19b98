"""Hostile files: each is read or refused with one line, in limited time and with little output."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tests.drawn import drawn
from tests.workbench.check.conftest import Check
from workbench.check.command import run
from workbench.check.sources import MAX_BYTES, MAX_LINES, MAX_WORDS

SIZE = MAX_BYTES - 100
MAX_OUTPUT = 3 << 20
MANY = MAX_WORDS + 10
HOSTILE = {
    "Dockerfile.variable": f"FROM vllm/vllm-openai\nENV {'a' * SIZE}",
    "Dockerfile.list": "FROM vllm/vllm-openai\nCMD [" + r'"\u0061",' * 20_000 + '"a"]',
    "Dockerfile.nested": f"FROM vllm/vllm-openai\nCMD {'[' * SIZE}",
    "unit.service": f"[Service]\nEnvironment={'a' * SIZE}",
    "word.sh": f"vllm serve '{'a' * SIZE}",
    "quotes.sh": ('x "\n' + '""\n' * 520) * 100,
    "doubled.sh": "A=aaaaaaaaaa\n" + 'A="$A$A$A$A"\n' * 30 + "vllm serve $A\n",
    "arrays.sh": "A=(a b)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'vllm serve "${A[@]}"\n',
    "open-array.sh": "A=(\n" * 20_000 + "vllm serve m --zz 1\n",
    "brackets.sh": f"A=({'(' * SIZE}",
    "appended.sh": "A=aaaaaaaaaa\n" + 'A+="$A$A$A$A"\n' * 30 + "vllm serve $A\n",
    "documents.sh": "cat <<A\n" * 20_000 + "vllm serve m --zz 1\n",
    "delimiters.sh": "".join(f"cat <<E{k}\n" for k in range(20_000)),
    "values.sh": f'A="{"a " * 30_000}"\nvllm serve {"$A " * MANY}',
    "flags.sh": f"vllm serve m {' '.join(f'--zz{k} 1' for k in range(900))}",
    "words.sh": f"vllm serve {'a ' * MANY}",
    "substitutions.sh": "vllm serve $(" * 10_000,
    "image.sh": f"docker run {'a.a:1/' * 40_000} b",
    "backslashes.sh": f"vllm serve m {chr(92) * 200_000}",
    "continued.sh": "vllm serve m " + "\\\n" * 100_000 + "--zz",
    "placeholders.sh": f"vllm serve {'<a b c d e f g h i ' * 9_000}",
    "braces.sh": f"vllm serve {'{{ ' * 60_000}",
    "lost.sh": "vllm serve m\n  --port 1\n" * 300,
    "scripts.sh": "bash -c 'vllm serve m" * 5_000,
    "nested.sh": "ssh h \"tmux 'vllm serve " * 5_000,
    "containers.sh": f"docker run {'-v vllm/x:y ' * 10_000}",
    "manifests.sh": "cat <<E > a.yaml\nkind: Pod\nimage: a/vllm:1\nE\n" * 2_000,
    "variables-and-files.sh": "".join(f"a{k}=1\n" for k in range(9_000))
    + "cat <<a >b.yaml\nvllm\na\n" * 7_000,
    "variables-and-lines.sh": "".join(f"export a{k}=1\n" for k in range(7_000))
    + "vllm serve a\n" * 10_000,
    "repeated-value.sh": f'A="{"x " * 8_000}"\n' + "$A\n" * 80_000,
    "repeated-eval.sh": f"A='{': ; ' * 3_900}vllm serve'\n" + "eval $A\n" * 30_000,
    "Dockerfile.many-documents": f"FROM a\nCOPY {'<<a ' * 60_000}\n",
    "Dockerfile.blank": "FROM a\nCOPY \nADD \t\n",
    "Dockerfile.documents": "FROM a\n" + "COPY <<E /x.sh\nvllm serve m\nE\n" * 400,
    "Dockerfile.open": "FROM a\n" + "COPY <<E /x.sh\n" * 12_000,
    "Dockerfile.comments": "FROM a\nCMD vllm serve m \\\n" + "# c\n" * 40_000,
    "Dockerfile.stages": "FROM a AS b\n" * 15_000,
    "keys.yaml": "model: m\n" + "".join(f"k{k}: 1\n" for k in range(MANY)),
    "deep.yaml": f"model: {'[' * 50_000}",
    "numbers.sh": f"vllm serve Qwen/Qwen3-8B -tp {'9' * 5_000} --gpu-memory-utilization nan",
}


@pytest.mark.parametrize("name", drawn(HOSTILE))
def test_hostile_file_is_read_or_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(HOSTILE[name][:MAX_BYTES])
    status = run(["--device", "h100", str(tmp_path / name)])
    output = capsys.readouterr()
    assert len(output.out) < MAX_OUTPUT
    if status == 2:
        assert output.err.startswith("error: ") and output.err.count("\n") == 1


@pytest.mark.parametrize("count", [MAX_WORDS, MAX_WORDS + 1])
def test_only_a_command_line_with_too_many_words_is_refused(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.sh").write_text(f"vllm serve {'a ' * count}")
    assert (run([str(tmp_path / "run.sh")]) == 2) == (count > MAX_WORDS)
    is_named = f"has more than {MAX_WORDS} words" in capsys.readouterr().err
    assert is_named == (count > MAX_WORDS)


@pytest.mark.parametrize("count", [MAX_LINES, MAX_LINES + 1])
def test_only_too_many_command_lines_are_refused(
    tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.sh").write_text("vllm serve m\n" * count)
    assert run([str(tmp_path / "run.sh")]) == (2 if count > MAX_LINES else 0)
    capsys.readouterr()


def test_too_large_standard_input_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("# \n" * MAX_BYTES))
    assert run([]) == 2
    assert capsys.readouterr().err == "error: <stdin> is larger than 256 KiB\n"


def test_equal_words_of_a_list_have_their_own_places(check: Check, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text('FROM vllm/vllm-openai:v0.32.0\nCMD ["m", "x", "x"]\n')
    extra = [each["column"] for each in check("Dockerfile") if each["code"] == "O112"]
    assert len(extra) == 2
