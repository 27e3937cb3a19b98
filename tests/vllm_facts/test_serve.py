"""vLLM's own command line:

all options are known, what has a meaning acts, what is wrong is refused.
"""

import json
from collections.abc import Callable
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.settings import resolve, settings_table, settings_type
from config import ConfigError, Settings
from config.sources import Flags, ignore_warning
from scripts.settings_tables import options_page
from scripts.surface import is_flag
from vllm_facts.facts import OPTIONS
from vllm_facts.model_choice import CONTEXT_LENGTH
from vllm_facts.option import Option
from vllm_facts.options import names_of, options_of, options_with_effect
from vllm_facts.serve import read, settings_of

BY_NAME = settings_table().by_name
MEANINGS = options_with_effect(settings_table())

Write = Callable[[str], str]
ISSUE = [
    "org/model", "--gpu-memory-utilization", "0.9", "--dtype", "bfloat16", "--max-model-len", "8192",
    "--max-num-batched-tokens", "2048", "--kv-events-config", '{"enable_kv_cache_events": true}',
    "--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',
    "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--tensor-parallel-size", "4",
]  # fmt: skip
SEVERAL = """{"kv_connector": "MultiConnector", "kv_role": "kv_both",
    "kv_connector_extra_config": {"connectors": [
    {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}]}}"""
NIXL = """{"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"connectors": [
    {"kv_connector": "NixlConnector", "kv_role": "kv_both",
     "kv_connector_extra_config": {"kv_lease_duration": 90}}]}}"""
SHARED = Path(__file__).parents[3] / "shared" / "spec" / "vllm-serve-0.32.jsonl"


def flags(*argv: str, environ: dict[str, str] | None = None) -> Flags:
    return settings_of(argv, environ or {}, settings_type())


def served(*argv: str, environ: dict[str, str] | None = None) -> Settings:
    return resolve(flags(*argv, environ=environ), environ or {}, ignore_warning)


def value(settings: Settings, name: str) -> Any:
    return BY_NAME[name].value(settings)


def refusal(*argv: str, status: int | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        served(*argv)
    assert status in (None, caught.value.status)
    text = str(caught.value)
    assert "\n" not in text
    return text


# What is known


def test_real_vllm_serve_command_line_is_accepted_unchanged() -> None:
    settings = served(*ISSUE)
    assert (settings.model.model, settings.model.max_model_len) == ("org/model", 8192)
    assert settings.model.tensor_parallel_size == 4
    assert settings.tools.enable_auto_tool_choice
    assert settings.kvcache.zmq_endpoint == "tcp://*:5557"
    assert settings.kvcache.kv_connector == "nixl"
    warnings = flags(*ISSUE).warnings
    ineffective = [name for name in ("--dtype", "--gpu-memory-utilization") if not is_flag(name)]
    assert warnings == [f"accepted, changes nothing here: {', '.join(ineffective)}"]


SAMPLES = {
    "text": "x",
    "int": "8",
    "float": "0.5",
    "JSON": "{}",
    "text or JSON": "{}",
    "size": "4k",
    "size or auto": "auto",
}
"""A value for each kind of option."""
ODD_SAMPLES = {
    "chat-template": "{{ messages }}",
    "kv-transfer-config": '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}',
    "lora-modules": "a=/x",
    "root-path": "/x",
}
"""A value for options whose texts have a form."""


def sample(name: str, facts: Option) -> list[str]:
    """A value as it follows the option; empty for a switch."""
    if facts.kind == "switch":
        return []
    if name in ODD_SAMPLES:
        return [ODD_SAMPLES[name]]
    return [[*facts.choices, *facts.names, SAMPLES[facts.kind]][0]]


def test_every_option_accepts_a_value_of_its_type() -> None:
    elsewhere = ("config", "ssl-keyfile", "ssl-certfile")  # files that have to be there
    words = {name: sample(name, facts) for name, facts in OPTIONS.items() if name not in elsewhere}
    for forms in zip_longest(*map(names_of, words)):
        line = [[form, *value] for form, value in zip(forms, words.values(), strict=True) if form]
        read_values = read(["m", *chain(*line)], settings_type())[0]
        assert {name for name, form in zip(words, forms, strict=True) if form} <= set(read_values)
    for name in (set(words) & set(MEANINGS)) - {"model"}:
        version = OPTIONS[name].since or "0.32"
        required = []
        if name == "data-parallel-size-local":
            required = ["--data-parallel-size", *words[name]]
        if name == "enable-auto-tool-choice":
            required = ["--tool-call-parser", "hermes"]
        if name == "data-parallel-multi-port-external-lb":
            required = ["--data-parallel-size", "2", "--data-parallel-size-local", "2"]
        environ = {"VLLM_USE_RUST_FRONTEND": "1"}
        argv = ("m", "--vllm-version", version, f"--{name}", *words[name], *required)
        served(*argv, environ=environ)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.exists(), reason="needs what vLLM's parser was seen to know")
def test_serve_command_has_the_same_options_as_the_vllm_parser() -> None:
    seen = [json.loads(line) for line in SHARED.read_text().splitlines()]
    options = options_of(["0.32"])
    for option in seen[1:]:
        name = option["options"][0].removeprefix("--")
        assert sorted(names_of(name)) == sorted(option["options"])
        facts = options[name]
        assert (facts.kind == "switch") == (option["takes"] == "nothing")
        assert facts.many == (option["takes"] == "values")
        assert list(facts.choices) == [word for word in option.get("choices", ()) if word != "None"]
    assert len(options) == len(seen) - 1


def test_serve_page_has_a_row_for_every_option() -> None:
    page = options_page().markdown()
    assert all(f"\n| `--{name}`" in page for name in OPTIONS)
    assert not any(OPTIONS[name].unplayed for name in MEANINGS)


def test_vllm_option_named_like_a_setting_is_mapped_to_a_setting() -> None:
    assert set(BY_NAME) & set(OPTIONS) <= set(MEANINGS)


# What acts


@pytest.mark.parametrize(
    ("argv", "name", "expected"),
    [
        (["--model", "a"], "model", "a"),
        (["m", "--weight-transfer-config", '{"backend": "ipc"}'], "weight-transfer", True),
        (["--port", "1", "b"], "model", "b"),
        ([], "model", "Qwen/Qwen3-0.6B"),
        (["m", "--max-model-len", "8k"], "max-model-len", 8000),
        (["m", "--max-model-len", "8K"], "max-model-len", 8192),
        (["m", "--max-model-len", "auto"], "max-model-len", CONTEXT_LENGTH),
        (["m", "--max-num-seq", "3"], "max-num-seqs", 3),
        (["m", "--host", "None"], "host", "0.0.0.0"),
        (["m", "--allowed-origins", '["http://a", "http://b"]'], "allowed-origins", ("http://a", "http://b")),
        (["m", "-dp", "16"], "data-parallel-size", 8),
        (["m", "-dp", "16", "-dpn", "9"], "data-parallel-rank", 7),
        (["m"], "enable-kvcache", True),
        (["m", "--no-enable-prefix-caching"], "enable-kvcache", False),
        (["m", "--max-model-len", "64", "--block-size", "32"], "kv-cache-size", 17),
        (["m"], "prefix-caching-hash-algo", "sha256"),
        (["m", "--kv-events-config", '{"publisher": "zmq"}'], "zmq-endpoint", ""),
        (["m", "--kv-events-config.enable_kv_cache_events", "true"], "zmq-endpoint", "tcp://*:5557"),
        (
            ["m", "--kv_events_config.enable_kv_cache_events=1", "--kv-events-config.topic", "kv@"],
            "kv-events-topic",
            "kv@",
        ),
        *(
            (["m", "--kv-transfer-config.kv_connector", f"{name}Connector", "--kv-transfer-config.kv_role",
              "kv_both"], "kv-connector", played)
            for name, played in (("Offloading", "offloading"), ("Example", "example"), ("DecodeBench", ""))
        ),
        (["m", "--kv-transfer-config", SEVERAL], "kv-connector", "nixl"),
        *(
            (["m", "--kv-transfer-config", NIXL], name, value)
            for name, value in (("kv-load-failure-policy", "recompute"), ("kv-lease-duration", 90.0))
        ),
        (["m", "--kv-transfer-config", SEVERAL.replace("[", "[7, [").replace("]", "]]")], "kv-connector", ""),
        (["m", "--language-model-only"], "multimodal", False),
        (["m"], "enable-auto-tool-choice", False),
        (["m", "--runner", "pooling"], "task", "embed"),
        (["m", "--runner", "pooling", "--convert", "embed"], "task", "embed"),
        (["m", "--lora-modules", "a=/a", '{"name": "b", "path": "/b"}'], "lora-modules",
         ("a=/a", '{"name": "b", "path": "/b"}')),
        (["m", "--uvicorn-log-level", "trace"], "log-level", "debug"),
        (["m", "--log-level", "ERROR", "--uvicorn-log-level", "trace"], "log-level", "error"),
        (["m", "--enable-log-requests"], "log-http", True),
        (["m", "--shutdown-timeout", "7"], "graceful-timeout", 7.0),
        (["m", "--shutdown-timeout", "7"], "shutdown-timeout", 7.0),
        (["m"], "shutdown-mode", "vllm"),
        (["m", "--profiler-config", '{"profiler": "cuda"}'], "profiling", True),
        (["m"], "structured-output-in-reasoning", False),
        (
            ["m", "--structured-outputs-config", '{"enable_in_reasoning": true}'],
            "structured-output-in-reasoning",
            True,
        ),
        (["m", "--chat-template", "template_chatml.jinja"], "chat-template", None),
        (["m", "--skip-model-check", "--chat-template", "/src/no.jinja"], "chat-template", None),
        (["m", "--pooler-config", '{"task": "token_embed"}'], "pooling-task", "token_embed"),
        (["m", "--pooler-config.task", "classify"], "pooling-task", "classify"),
    ],
)  # fmt: skip
def test_serve_option_changes_the_corresponding_setting(
    argv: list[str], name: str, expected: object
) -> None:
    assert value(served(*argv), name) == expected


def test_flags_without_effect_are_listed_in_a_warning() -> None:
    warnings = flags(
        "m", "-dp", "16", "--otlp-traces-endpoint", "grpc://a:4317", "--enforce-eager"
    ).warnings
    assert warnings == [
        "accepted, changes nothing here: --enforce-eager",
        "--data-parallel-size: 8 ranks of 16 are simulated",
        "--otlp-traces-endpoint: spans are sent by HTTP only, to http://collector:4318/v1/traces",
    ]
    assert flags("m", "--port", "1").warnings == []


def test_model_folder_config_sets_the_context_length(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 2048}')
    assert served(str(tmp_path)).model.max_model_len == 2048
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 96}}')
    assert served(str(tmp_path)).model.max_model_len == 96
    for odd in ("[]", "{", '{"text_config": 1}', '{"max_position_embeddings": "x"}'):
        (tmp_path / "config.json").write_text(odd)
        assert served(str(tmp_path)).model.max_model_len == CONTEXT_LENGTH


# Where else values come from


def test_environment_variable_overrides_a_default_but_not_the_command_line() -> None:
    environ = {"SIM_MODEL": "v", "SIM_ENABLE_KVCACHE": "false", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5"}
    environ |= {"VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_HOST_IP": "10.0.0.1", "VLLM_API_KEY": "k"}
    settings = served("--seed", "1", environ=environ)
    assert (settings.model.model, settings.kvcache.enable_kvcache) == ("v", False)
    assert (settings.server.keep_alive_timeout, settings.server.pod_ip) == (5.0, "10.0.0.1")
    assert (settings.log.log_level, settings.access.api_key) == ("debug", ("k",))
    assert served("m", "--enable-prefix-caching", environ=environ).kvcache.enable_kvcache


def test_command_line_options_override_the_config_file(yaml_file: Write) -> None:
    text = """
        model: f
        port: 7
        max_model_len: 8k
        served-model-name: [a, b]
        enforce-eager: true
        headless: false
        fast-path: false
        kv-events-config: {enable_kv_cache_events: true, topic: t}
        lora-modules: [b=/b]
        revision: null
    """
    file = yaml_file(text)
    settings = served("--config", file, "--port", "8")
    assert (settings.model.model, settings.server.port) == ("f", 8)
    assert settings.model.served_names == ("a", "b")
    assert (settings.model.max_model_len, settings.kvcache.kv_events_topic) == (8000, "t")
    assert not settings.server.fast_path
    assert served("m", "--config", file).model.model == "m"


@pytest.mark.parametrize(
    ("text", "setting", "expected", "warning"),
    [
        ("enable-prefix-caching: false", "enable-kvcache", True, "vLLM ignores enable-prefix-ca"),
        ("enable_chunked_prefill: false", "enable-chunked-prefill", True, "vLLM ignores enable_"),
        ("port: 1\nport: 2", "port", 2, "port is specified twice, the last value counts"),
    ],
)
def test_what_vllm_ignores_in_a_config_file_is_ignored_with_a_warning(
    yaml_file: Write, text: str, setting: str, expected: object, warning: str
) -> None:
    argv = ["m", "--config", yaml_file(text)]
    assert value(served(*argv), setting) == expected
    assert [warning in line for line in flags(*argv).warnings] == [True]


def test_config_file_in_the_word_of_its_flag_is_ignored_with_a_warning(yaml_file: Write) -> None:
    argv = ["m", f"--config={yaml_file('port: 7')}"]
    assert served(*argv).server.port == 8000
    assert "write --config FILE as two words" in flags(*argv).warnings[0]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("max-model-len: null", "flag --max-model-len: 'None' must be a whole number"),
        ("lora-modules: [{name: n, path: /n}]", "flag --lora-modules: "),
        ("swap-space: 4", "unknown flag --swap-space: vLLM removed it in 0.18"),
        ("enforce-eager: 1", "flag --enforce-eager does not accept a value"),
        ("compilation-config: {mode: 99}", "flag --compilation-config: "),
    ],
)
def test_what_vllm_rejects_in_a_config_file_is_rejected(
    yaml_file: Write, text: str, line: str
) -> None:
    assert line in refusal("m", "--config", yaml_file(text), status=2)


# What is refused


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            ["--gpu-memory-utilisation", "1"],
            "unknown flag --gpu-memory-utilisation; did you mean --gpu-memory-",
        ),
        (
            ["--dtype", "bf16"],
            "flag --dtype: 'bf16' must be one of auto, bfloat16, float, float16, float32",
        ),
        (["--max-num-seqs", "many"], "flag --max-num-seqs: 'many' must be a whole number"),
        (
            ["--max-num-seqs", "0"],
            "setting max-num-seqs: '0' (flag --max-num-seqs) must be at least 1",
        ),
        (
            ["--max-model-len", "8.5K"],
            "flag --max-model-len: '8.5K' must be a whole number, which may",
        ),
        (
            ["--max-model-len", "8kb"],
            "flag --max-model-len: '8kb' must be a whole number, which may end in k",
        ),
        (["--compilation-config", "{"], "flag --compilation-config: '{' must be valid JSON"),
        (["--kv-events-config", '{"topics": ""}'], "unknown field `topics`; did you mean topic?"),
        (["--kv-transfer-config.kv_role", "both"], "kv_role must be one of kv_producer, "),
        (["--enforce-eager=true"], "flag --enforce-eager does not accept a value"),
        (["--max-n", "1"], "ambiguous option: --max-n could match --max-num-"),
        (["two"], "unexpected argument 'two'"),
        (["--config", "/nowhere.yaml"], "YAML file /nowhere.yaml cannot be read"),
        (["--config", "/nowhere"], "flag --config: '/nowhere' must end in .yaml or .yml"),
        (["--config", "/a.yml", "--config", "/b.yml"], "flag --config: only one file is allowed"),
        (["--tp", "2"], "unknown flag --tp; did you mean -tp?"),
    ],
)
def test_one_line_error_for_an_invalid_flag_names_the_flag(argv: list[str], line: str) -> None:
    assert line in refusal("m", *argv)


def test_invalid_config_file_is_rejected(yaml_file: Write) -> None:
    assert "must map options to values" in refusal("m", "--config", yaml_file("[a]"))
    text = refusal("m", "--config", yaml_file("prot: 1"))
    assert "unknown flag --prot; did you mean --port?" in text
    assert "unknown flag --no-prot" in refusal("m", "--config", yaml_file("prot: false"))


# However it is written


@given(st.integers(0, 10**9), st.sampled_from("kmgKMG"))
def test_size_suffixes_k_m_and_g_multiply_the_number_before_them(number: int, unit: str) -> None:
    power = {"k": 1, "m": 2, "g": 3}[unit.lower()]
    expected = number * (1000 if unit.islower() else 1024) ** power
    assert OPTIONS["max-num-batched-tokens"].read(f"{number}{unit}") == str(expected)


@hypothesis.settings(deadline=None, max_examples=25)
@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z_]{1,8}\Z"),
        st.integers() | st.booleans() | st.lists(st.from_regex(r"\A[a-z]{1,5}\Z"), min_size=1),
        min_size=1,
    )
)
def test_dotted_flags_set_the_same_values_as_a_json_object(fields: dict[str, Any]) -> None:
    words = []
    for name, field in fields.items():
        plus = "+" if isinstance(field, list) else ""
        text = ",".join(field) if isinstance(field, list) else json.dumps(field)
        words += [f"--additional-config.{name}{plus}", text]
    assert json.loads(str(read(["m", *words], settings_type())[0]["additional-config"])) == fields


@hypothesis.settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.text(max_size=12) | st.sampled_from([*MEANINGS]).map(lambda name: f"--{name}"),
        max_size=6,
    )
)
def test_serve_command_raises_only_one_line_errors_for_any_arguments(words: list[str]) -> None:
    try:
        served(*words)
    except ConfigError as error:
        assert "\n" not in str(error)
