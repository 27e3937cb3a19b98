"""Places and values of command lines in shell scripts, Dockerfiles, YAML files, and units."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.workbench.check.conftest import Check
from workbench.check.command import run
from workbench.check.files import read_file
from workbench.check.text import Text

SCRIPT = """\
#!/bin/bash
# vllm serve in a comment isn't a command
MODEL=Qwen/Qwen3-8B
LENGTH=${LENGTH:-8192}
vllm serve "$MODEL" \\
    --max-model-len $LENGTH \\
    --swap-space 4 && echo 'done; vllm serve'
"""


def test_script_has_the_line_and_column_of_a_continued_command(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    findings = check("run.sh")
    assert [(each["code"], each["line"], each["column"]) for each in findings] == [("O102", 7, 5)]


def test_variables_of_a_script_have_their_values() -> None:
    (line,) = read_file(Text("run.sh", SCRIPT)).lines
    texts = [word.text for word in line.words]
    assert texts == ["Qwen/Qwen3-8B", "--max-model-len", "8192", "--swap-space", "4"]


def test_value_of_an_unknown_variable_is_a_note_and_the_rest_is_checked(
    check: Check, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_text("vllm serve $MODEL --max-num-seqs $N $MORE --max-num-sqs 1\n")
    codes = [each["code"] for each in check("run.sh")]
    assert codes == ["F501", "F501", "F501", "O101"]


def test_option_in_the_braces_of_a_variable_is_one_word(check: Check, tmp_path: Path) -> None:
    text = 'vllm serve Qwen/Qwen3-8B ${PARSER:+--tool-call-parser "$PARSER"} ${X:---seed 1}\n'
    (tmp_path / "run.sh").write_text(text)
    findings = check("run.sh")
    assert [(each["code"], each["column"]) for each in findings] == [("F501", 26)]


def test_script_of_a_shell_is_read_in_every_kind_of_file(check: Check, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("exec bash -c 'vllm serve a/b --max-num-sqs 8'\n")
    (tmp_path / "Dockerfile").write_text(
        'FROM python:3.12\nCMD ["sh", "-c", "vllm serve a/b --max-num-sqs 8"]\n'
    )
    (tmp_path / "pod.yaml").write_text(
        'spec: {containers: [{image: x, args: [bash, -c, "cd /a\\nvllm serve a/b -tp x"]}]}\n'
    )
    findings = check("run.sh Dockerfile pod.yaml --select O")
    places = [(each["file"], each["code"], each["line"], each["column"]) for each in findings]
    assert places == [
        ("run.sh", "O101", 1, 30),
        ("Dockerfile", "O101", 2, 34),
        ("pod.yaml", "O104", 1, 72),
    ]


EVAL = """\
MORE="--max-num-seqs 4"
eval "exec vllm serve Qwen/Qwen3-8B \\
  --served-model-name "{{ .Spec.Model.Name }}" \\
  $MORE \\
  {{- if .Tensor }} --tensor-parallel-size {{ .Tensor }}{{- end }} \\
  {{ if .Port }}--port {{ .Port }}{{ else }}--port 5555{{ end }} \\
  --max-num-sqs 8 \\
  $@"
"""


def test_eval_reads_its_text_as_code(check: Check, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(EVAL)
    found = [(each["code"], each["line"], each["column"]) for each in check("run.sh")]
    notes = [("F501", 3, 24), ("F501", 5, 44), ("F501", 6, 24)]
    assert found == [*notes, ("O101", 7, 3), ("F501", 8, 3)]
    (line,) = read_file(Text("run.sh", EVAL)).lines
    texts = [word.text for word in line.words]
    assert texts[3:7] == ["--max-num-seqs", "4", "--tensor-parallel-size", "{{ .Tensor }}"]


def test_eval_joins_its_words(check: Check, tmp_path: Path) -> None:
    text = (
        "eval vllm 'serve Qwen/Qwen3-8B' --max-num-sqs 8\neval\neval ''\n"
        "eval \"eval 'vllm serve Qwen/Qwen3-8B'\"\n"
    )
    (tmp_path / "run.sh").write_text(text)
    found = [(each["code"], each["line"], each["column"]) for each in check("run.sh")]
    assert found == [("O101", 1, 33)]
    assert len(read_file(Text("run.sh", text)).lines) == 2


def test_eval_within_eval_ends(tmp_path: Path) -> None:
    assert read_file(Text("run.sh", "eval " * 20_000)).lines == []


def test_form_of_an_earlier_version_is_no_error(check: Check, tmp_path: Path) -> None:
    text = "vllm serve Qwen/Qwen2-VL-7B-Instruct --limit-mm-per-prompt image=4\n"
    (tmp_path / "run.sh").write_text(text)
    assert "O104" not in {each["code"] for each in check("--vllm-version 0.9 run.sh")}
    assert "O104" in {each["code"] for each in check("run.sh")}


def test_image_of_docker_run_gives_the_version_and_its_variables(
    check: Check, tmp_path: Path
) -> None:
    text = (
        "export VLLM_USE_V1=0\n"
        "docker run --gpus all -e VLLM_ATTENTION_BACKEND=FLASHINFER \\\n"
        "  vllm/vllm-openai:v0.17.1 --model Qwen/Qwen3-8B --swap-space 4\n"
    )
    (tmp_path / "run.sh").write_text(text)
    findings = check("run.sh")
    # 0.17 has --swap-space. The variable of the script is not one of the container.
    assert [(each["code"], each["line"]) for each in findings] == [("O109", 2)]
    assert "VLLM_ATTENTION_BACKEND" in findings[0]["message"]


def test_dockerfile_has_the_places_of_words_in_a_shell(check: Check, tmp_path: Path) -> None:
    text = (
        "FROM vllm/vllm-openai:v0.32.0\n"
        "ENV VLLM_USE_V1=1\n"
        'ENTRYPOINT ["vllm", "serve"]\n'
        'CMD ["Qwen/Qwen3-8B", "--swap-space", "4"]\n'
    )
    (tmp_path / "Dockerfile").write_text(text)
    findings = check("Dockerfile")
    places = [(each["code"], each["line"], each["column"]) for each in findings]
    assert places == [("O109", 2, 5), ("O102", 4, 23)]


def test_unit_is_read_with_its_variables(check: Check, tmp_path: Path) -> None:
    text = (
        "[Service]\n"
        "Environment=VLLM_USE_V1=1\n"
        "ExecStart=/opt/venv/bin/vllm serve Qwen/Qwen3-8B \\\n"
        "    --swap-space 4\n"
    )
    (tmp_path / "vllm.service").write_text(text)
    places = [(each["code"], each["line"], each["column"]) for each in check("vllm.service")]
    assert places == [("O109", 2, 13), ("O102", 4, 5)]


def test_yaml_file_has_the_lines_of_its_keys(check: Check, tmp_path: Path) -> None:
    text = "model: Qwen/Qwen3-8B\n\nmax_num_seqs: many\nswap-space: 4\nswap-space: 5\n"
    (tmp_path / "vllm.yaml").write_text(text)
    places = [(each["code"], each["line"]) for each in check("vllm.yaml")]
    assert places == [("O104", 3), ("O111", 5), ("O102", 5)]


def test_file_of_the_config_option_is_read(check: Check, tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").write_text("enable-auto-tool-choice: true\n")
    findings = check("-- vllm serve Qwen/Qwen3-8B --config vllm.yaml")
    assert [(each["code"], each["file"]) for each in findings] == [("C201", "vllm.yaml")]


@pytest.mark.parametrize(
    ("name", "text"),
    [("missing.sh", None), ("a.yaml", "kind: Pod\n"), ("b.yaml", "a: [\n"), ("c.sh", "ls\n")],
)
def test_unreadable_file_has_status_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert run([str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and name in captured.err


def test_standard_input_is_a_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\nvllm serve Qwen/Qwen3-8B --swap-space 4\n"))
    assert run(["--format", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["file"], finding["line"]) == ("<stdin>", 2)


ARRAYS = """\
ARGS=(
  --max-model-len 4096   # a comment
  # it's a comment, too
  --max-num-sqs 8
  --chat-template "a (b.jinja"
)
[ -n "$X" ] && ARGS+=(--swap-space 4)
EXTRA="--dtype half"
EXTRA+=" --bogus 1"
declare -a MORE=(--seed 3)
vllm serve "Qwen/Qwen3-8B" "${ARGS[@]}" $EXTRA "${MORE[@]}"
"""


def test_arrays_of_a_script_have_their_elements_and_places(check: Check, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(ARRAYS)
    places = [(each["code"], each["line"], each["column"]) for each in check("--select O run.sh")]
    assert places == [("O101", 4, 3), ("O102", 7, 23), ("O101", 11, 41)]


DOCUMENTS = """\
cat > README <<'EOF'
It's a text with "an open quotation
EOF
python3 - <<PY
print("vllm serve nothing --wrong 1")
PY
cat <<-INNER | bash
	vllm serve some/model --inner 1
	INNER
vllm serve some/model --last 1 <<< "text"
"""


def test_here_documents_end_at_their_delimiter(check: Check, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(DOCUMENTS)
    findings = check("--select O101 run.sh")
    assert [(each["line"], each["column"]) for each in findings] == [(8, 24), (10, 23)]


@pytest.mark.parametrize(
    ("words", "code", "fix"),
    [
        ("--max-num-seqs 'x; did you mean --port?'", "O104", ""),
        ("--max-num-seqs 'requires a value'", "O104", ""),
        ("--max-num-seqs 'unknown field'", "O104", ""),
        ("--max-num-seqs --port 1", "O106", ""),
        ("--max-num-seqs", "O106", ""),
        ("--enforce-eager=1", "O106", ""),
        ("""--compilation-config '{"cudagraph_mod": "NONE"}'""", "O105", "use cudagraph_mode"),
        ("--compilation-config '{'", "O104", ""),
        ("--compilation-config.a_b", "O106", ""),
    ],
)
def test_flaw_of_a_flag_is_read_from_the_error_and_not_from_its_text(
    check: Check, tmp_path: Path, words: str, code: str, fix: str
) -> None:
    (tmp_path / "run.sh").write_text(f"vllm serve Qwen/Qwen3-8B {words}\n")
    found = [(each["code"], each.get("fix", "")) for each in check("run.sh --select O")]
    assert found == [(code, fix)]
