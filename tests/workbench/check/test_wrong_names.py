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


@pytest.mark.parametrize("version", ["0.30", "0.32", "0.33"])
def test_load_formats_are_those_of_the_version(check: Check, version: str) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 4 --load-format"
    assert check(f"--select O --vllm-version {version} -- {line} ipc_cache") == []
    assert check(f"--select O --vllm-version {version} -- {line} gguf") == []  # of a plugin
    (found,) = check(f"--select O --vllm-version {version} -- {line} ipc_cash")
    assert (found["code"], found["fix"]) == ("O113", "use ipc_cache")


def test_load_format_of_a_later_version_is_unknown(check: Check) -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --load-format ipc_cache"
    (found,) = check(f"--select O --vllm-version 0.29 -- {line}")
    assert found["code"] == "O113"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--quantization-config.linear fp8_per_channel", ""),
        ("--quantization-config.linear mxfp8", ""),
        ("--quantization-config.moe int8_per_channel_weight_only", ""),
        ("--quantization-config.moe.weight fp8_per_token", ""),
        ("--quantization-config.linear null", ""),
        ('--quantization-config \'{"linear": "fp8_per_block", "moe": {"weight": "mxfp4"}}\'', ""),
        ("--quantization-config.linear nonsense", "linear must be one of fp8_per_block,"),
        # A name of the table that says nothing about linear layers
        ("--quantization-config.linear nvfp4_per_token", "linear must be one of fp8_per_block,"),
        ("--quantization-config.moe.weight fp8_per_channel", "moe.weight must be one of"),
        ("--quantization-config.linear 5", "linear must be an object"),
    ],
)
def test_names_stand_for_parts_of_a_quantization_as_in_vllm(
    check: Check, words: str, message: str
) -> None:
    line = f"vllm serve MiniMaxAI/MiniMax-M3-MXFP8 --linear-backend auto {words}"
    found = check(f"--select O --vllm-version 0.32 -- {line}")
    assert [each["code"] for each in found] == ["O104"] * bool(message)
    assert all(message in each["message"] for each in found)


def test_name_for_a_part_of_a_quantization_is_known_since_its_version(check: Check) -> None:
    line = "vllm serve Qwen/Qwen3-8B --quantization-config.linear.weight int8_per_group_32"
    assert check(f"--select O --vllm-version 0.33 -- {line}") == []
    (found,) = check(f"--select O --vllm-version 0.32 -- {line}")
    assert found["code"] == "O104"


@pytest.mark.parametrize("keyword", ["all", "ModelConfig", "max-num-seqs", "page", ""])
def test_help_takes_a_keyword_as_in_vllm(tmp_path: Path, check: Check, keyword: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"vllm serve --help={keyword}\nvllm serve --help\n")
    assert check(str(script)) == []


@pytest.mark.parametrize(
    "model",
    [
        "polaria-tech/zerank-2-reranker-vllm",
        "nvidia/llama-nemotron-rerank-1b-v2",
        "Qwen/Qwen3-VL-Reranker-2B",
        "BAAI/bge-m3",
        "answerdotai/answerai-colbert-small-v1",
    ],
)
def test_chat_template_of_a_pooling_model_is_its_score_template(check: Check, model: str) -> None:
    line = f"vllm serve {model} --chat-template"
    assert check(f"--select D404 -- {line} zerank2.jinja") == []
    (found,) = check(f"--select D404 -- vllm serve {model} --reasoning-parser qwen3")
    assert found["fix"] == "remove --reasoning-parser"


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-Omni-7B", "fixie-ai/ultravox-v0_5-llama-3_2-1b"])
def test_generating_model_uses_the_options_of_chats(check: Check, model: str) -> None:
    assert check(f"--select D404 -- vllm serve {model} --reasoning-parser qwen3") == []
