"""Values that vLLM's parser takes, and that its configuration does not know."""

from pathlib import Path

import pytest

from tests.workbench.check.conftest import Check


@pytest.mark.parametrize(
    ("words", "message", "fix"),
    [
        (
            "--tool-call-parser hermess",
            "--tool-call-parser: 'hermess' must be one of",
            "use hermes",
        ),
        ("--tool-call-parser 'a;b'", "--tool-call-parser: 'a;b' must be one of", ""),
        (
            '--kv-transfer-config \'{"kv_connector": "NixlConector", "kv_role": "kv_both"}\'',
            "--kv-transfer-config: kv_connector 'NixlConector' must be one of",
            "use NixlConnector",
        ),
        (
            '--speculative-config \'{"methd": "ngram"}\'',
            "--speculative-config: unknown field methd",
            "",
        ),
    ],
)
def test_similar_name_is_the_fix_and_not_in_the_message(
    check: Check, words: str, message: str, fix: str
) -> None:
    (found,) = check(f"--select O,C -- vllm serve Qwen/Qwen3-8B {words}")
    assert found["message"].startswith(message)
    assert "did you mean" not in found["message"]
    assert found["fix"] == fix


@pytest.mark.parametrize(
    ("plugin", "codes"),
    [
        ("", ["O113"]),
        (" --tool-parser-plugin ''", ["O113"]),
        (" --tool-parser-plugin ours.py", ["F504"]),
        (" --tool-parser-plugin $PLUGIN", ["F501"]),
    ],
)
def test_plugin_can_add_a_parser(
    tmp_path: Path, check: Check, plugin: str, codes: list[str]
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"vllm serve Qwen/Qwen3-8B --tool-call-parser ours{plugin}\n")
    assert [each["code"] for each in check(f"--select O,F {script}")] == codes


def test_check_reports_each_wrong_value_of_an_option(check: Check) -> None:
    line = "vllm serve Qwen/Qwen3-8B --max-num-seqs x --foo 3 --max-num-seqs=y --max-num-seqs 8"
    found = [(each["code"], each["message"]) for each in check(f"--select O -- {line}")]
    assert [code for code, _ in found] == ["O104", "O101", "O104"]
    assert found[0][1].startswith("--max-num-seqs: 'x' must be")
    assert found[2][1].startswith("--max-num-seqs: 'y' must be")
