"""The format of a file follows from its content; a file without a known format is named as such."""

import json
from pathlib import Path

import pytest
import yaml

from app.core.cli import main
from tests.extensions.recording.recordings import chat, exchange, written
from tests.workbench.imports.test_imported_logs import ANSWER, CLAUDE, message
from tests.workbench.imports.test_imported_scripts import CASSETTE, COMMAND, interaction
from workbench.imports.formats import FORMATS
from workbench.imports.next_command import next_command

UNKNOWN = "not a format that I know"
PROSE = "These are the\nrules:\n\n* a list\n"
DOCKERFILE = "FROM vllm/vllm-openai\nCMD vllm serve m # request: none\n"
README = "# Title\n\nno rules: none\n\n* a list\n\n```yaml\na: [\n```\n"


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line of standard error."""
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"just text",
        b"a,b\n1,2\n",
        b"a: [",
        b"- x: !!python/object/apply:os.getcwd []",
        b"{{ .Values.a }}\nkey: {{ b }}\n",
        b"\x1f\x8b\x08\x00",
        b"[section]\nkey = 1\n",
        b"[2026-01-31 12:00] started\n",
        b"{}",
        b"[]",
        b"[1, 2]",
        b'{"a": 1}\n{"a": 2}\n',
        b'{"llm": 5}',
        b'{"rules": [1], "mappings": 2, "request": 3, "response": 4, "interactions": 5}',
        b'{"openapi": "3.1.0", "paths": {',
        DOCKERFILE.encode(),
        README.encode(),
    ],
)
@pytest.mark.parametrize("suffix", ["yaml", "json", "jsonl", "log", "txt"])
def test_file_without_a_known_format_gets_no_error_of_a_parser(
    tmp_path: Path, content: bytes, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"f.{suffix}"
    file.write_bytes(content)
    assert main([*COMMAND, str(file)]) == 1
    line = error_of(capsys)
    assert line.startswith(f"error: {file}: {UNKNOWN}")
    assert line.endswith(f"and {FORMATS['curl'].about}")
    assert "mapping values" not in line and "scanning" not in line


@pytest.mark.parametrize("suffix", ["md", "txt", "log"])
def test_prose_with_the_key_of_a_format_has_no_known_format(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"f.{suffix}"
    file.write_text(PROSE)
    assert main([*COMMAND, str(file)]) == 1
    assert error_of(capsys).startswith(f"error: {file}: {UNKNOWN}; I read ")


@pytest.mark.parametrize("suffix", ["", ".txt", ".log", ".json", ".yaml"])
def test_suffix_does_not_decide_about_the_format_of_json(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"f{suffix}"
    file.write_text(json.dumps(CASSETTE))
    assert main([*COMMAND, str(file), "--out", str(tmp_path / "s.yaml")]) == 0


def test_yaml_is_read_regardless_of_its_suffix(tmp_path: Path) -> None:
    file = tmp_path / "cassette.txt"
    file.write_text(yaml.safe_dump(CASSETTE))
    assert main([*COMMAND, str(file), "--out", str(tmp_path / "s.yaml")]) == 0


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps(CASSETTE)[:-10], "is not valid: "),
        (yaml.safe_dump(CASSETTE) + "a: b: c\n", "is not valid: line "),
    ],
)
def test_damaged_file_of_a_known_format_is_named_with_its_reason(
    tmp_path: Path, content: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(content)
    assert main([*COMMAND, str(file)]) == 1
    assert error_of(capsys).startswith(f"error: {file}: {reason}")


def test_own_recording_names_the_command_that_converts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "recording.jsonl", [exchange(chat("A"), (0.0, b"{}"))])
    assert main([*COMMAND, file]) == 1
    assert error_of(capsys).endswith("script from-recording")


def test_texts_of_python_in_a_cassette_are_read(tmp_path: Path) -> None:
    """vcrpy writes the names of aiohttp's headers as objects."""
    file = tmp_path / "cassette.yaml"
    document = yaml.safe_dump(CASSETTE)
    tag = "!!python/object/apply:multidict._multidict.istr"
    header = f"    headers:\n      ? {tag}\n      - Accept\n      : - application/json\n"
    assert document.count("    headers: {}\n") == 2
    file.write_text(document.replace("    headers: {}\n", header))
    assert main([*COMMAND, str(file), "--out", str(tmp_path / "s.yaml")]) == 0


def test_answer_of_an_old_cassette_of_httpx_is_read(tmp_path: Path) -> None:
    recorded = interaction("https://x.test/v1/chat/completions", chat("A"), None)
    recorded["response"] = {"content": json.dumps(ANSWER), "status_code": 200, "headers": {}}
    file = tmp_path / "cassette.yaml"
    file.write_text(yaml.safe_dump({"interactions": [recorded]}))
    script = tmp_path / "s.yaml"
    assert main([*COMMAND, str(file), "--out", str(script)]) == 0
    assert "text: B" in script.read_text()


def test_import_prints_the_next_command_with_the_models_of_the_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.jsonl"
    names = ("gpt-4o", "a b")
    records = [{"request": {**chat("A"), "model": name}, "response": ANSWER} for name in names]
    log.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    script = tmp_path / "s.yaml"
    assert main([*COMMAND, str(log), "--out", str(script)]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f" run --script {script} --served-model-name gpt-4o 'a b'\n")
    assert main([*COMMAND, str(log)]) == 0
    first_line, *_ = capsys.readouterr().out.splitlines()
    assert first_line.startswith("# next: ")
    assert first_line.endswith(" run --script FILE --served-model-name gpt-4o 'a b'")


def test_model_without_a_name_is_no_condition(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"request": {**chat("A"), "model": None}, "response": ANSWER}))
    script = tmp_path / "s.yaml"
    assert main([*COMMAND, str(log), "--out", str(script)]) == 0
    assert "model" not in yaml.safe_load(script.read_text())["rules"][0]["when"]


@pytest.mark.parametrize(
    ("rules", "flags"),
    [
        ([{"when": {}, "then": {}}], ""),
        ([{"when": {"api": "embeddings"}, "then": {}}], " --task embed"),
        (
            [{"when": {"api": "embeddings"}, "then": {}}, {"when": {"api": "chat"}, "then": {}}],
            " --embeddings-with-chat",
        ),
        (
            [{"when": {"api": "messages"}, "then": {"reasoning": "r", "text": "t"}}],
            " --reasoning-parser qwen3",
        ),
        ([{"when": {"model": ["a", "b\n"]}, "then": {}}], " --served-model-name a"),
    ],
)
def test_next_command_has_the_routes_that_the_rules_need(
    rules: list[dict[str, object]], flags: str
) -> None:
    assert next_command(rules, Path("s.yaml")).endswith(f" run --script s.yaml{flags}")


def test_script_of_messages_with_thoughts_accepts_their_requests(tmp_path: Path) -> None:
    thoughts = {"type": "thinking", "thinking": "t", "signature": "s"}
    answer = {**CLAUDE, "content": [thoughts, *CLAUDE["content"]]}
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"request": message("A"), "response": answer}))
    script = tmp_path / "s.yaml"
    assert main([*COMMAND, str(log), "--out", str(script)]) == 0
    rules = yaml.safe_load(script.read_text())["rules"]
    assert next_command(rules, script).endswith("--reasoning-parser qwen3 --served-model-name m")
