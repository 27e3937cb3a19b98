"""What `serve` refuses because vLLM's own parser does, and what it takes with a warning."""

from pathlib import Path

import pytest

from app.core.settings import resolve, settings_table, settings_type
from config.command_line import setting_flags
from config.declaration import ConfigError
from config.sources import Flags, ignore_warning
from vllm_facts.facts import OPTIONS
from vllm_facts.help import usage
from vllm_facts.history import read_history
from vllm_facts.objects import read_object
from vllm_facts.options import names_of
from vllm_facts.removal import removal_of
from vllm_facts.serve import REMOVED_FORMS, read, settings_of

REMOVED = [form for form, life in read_history().options.items() if life.is_gone_in("0.32")]
GRPC = ["--grpc-port", "50051"]


def flags(*argv: str, environ: dict[str, str] | None = None) -> Flags:
    return settings_of(argv, environ or {}, settings_type())


def refusal(*argv: str, status: int = 2) -> str:
    with pytest.raises(ConfigError) as caught:
        flags("m", *argv)
    assert caught.value.status == status
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--swap-space", "16"], "--swap-space: vLLM removed it in 0.18, without a replacement"),
        (["--disable-log-requests"], "in 0.17; use --enable-log-requests"),
        (
            ["--guided-decoding-backend", "xgrammar"],
            "in 0.12; use --structured-outputs-config.backend",
        ),
        (["--enable-reasoning"], "in 0.10; use --reasoning-parser"),
        (["--num-scheduler-steps", "8"], "--num-scheduler-steps: vLLM removed it in 0.10"),
        (["--rope-scaling", '{"a": 1}'], "in 0.11.1; use --hf-overrides"),
        (["--device", "cpu"], "--device: vLLM removed it in 0.10"),
        (["--device=cpu"], "--device: vLLM removed it in 0.10"),
        (["--task", "embed"], "in 0.13; use --runner and --convert"),
        (["--no_enable_lora_bias"], "--no-enable-lora-bias: vLLM removed it in 0.11"),
        (["--speculative-model", "x"], "in 0.8; use --speculative-config.model"),
        (["--watchdog-config", "{}"], "requires vLLM 0.33"),
    ],
)
def test_option_of_another_version_is_rejected_with_its_replacement(
    words: list[str], error: str
) -> None:
    assert error in refusal(*words)


def test_first_wrong_value_is_reported_before_an_unknown_option() -> None:
    assert "flag --port: 'x'" in refusal("--swap-space", "16", "--port", "x")
    assert "unknown flag --swap-space" in refusal("--swap-space", "16", "--tp", "2")


def test_settings_with_the_name_of_a_removed_option_are_no_flags_of_serve() -> None:
    history = read_history()
    setting_forms = {form for flag in setting_flags(settings_table()) for form in flag.forms}
    option_forms = {form for name in OPTIONS for form in names_of(name)}
    removed = {form for form, lifetime in history.options.items() if lifetime.is_gone_in("0.32")}
    assert removed & setting_forms - option_forms == set(REMOVED_FORMS)


@pytest.mark.parametrize("form", REMOVED)
def test_removed_option_is_ignored_with_a_warning_if_that_is_allowed(form: str) -> None:
    values = {"--task": ["embed"], "--device": ["cpu"]}.get(form, ["1"])
    for words in ([form], [form, *values]):
        try:
            result = flags("m", "--allow-removed-options", *words)
        except ConfigError as error:
            assert "requires a value" in str(error) or "unexpected argument '1'" in str(error)
            continue
        if form in REMOVED_FORMS:
            assert result.values[form.lstrip("-")] == values[0]
        assert any(removal_of(form, "0.32") in line for line in result.warnings)
        return
    pytest.fail(f"{form} takes neither no value nor one")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--compilation-config", '{"zzz": 1}'], "unknown field `zzz`"),
        (["--compilation-config.use_inductor", "false"], "vLLM removed it in 0.12"),
        (["--compilation-config", '{"pass_config": {"fuse_x": true}}'], "`pass_config.fuse_x`"),
        (["--compilation-config", '{"mode": 99}'], "mode must be one of NONE, 0, STOCK_TORCH_"),
        (["--compilation-config", '{"mode": "x"}'], "mode must be one of"),
        (["--compilation-config", '{"cudagraph_mode": "NOPE"}'], "cudagraph_mode must be one of"),
        (["--compilation-config", '{"cudagraph_capture_sizes": "x"}'], "must be a list"),
        (["--compilation-config", '{"custom_ops": ["rms_norm"]}'], "must be all, none, +NAME"),
        (["--compilation-config", "3"], "must be an object"),
        (["--compilation-config", "[]"], "must be an object"),
        (["--attention-config.zzz", "1"], "unknown field `zzz`"),
        (["--structured-outputs-config", '{"backend": "x"}'], "backend must be one of auto, "),
        (
            ["--structured-outputs-config.disable_any_whitespace", "true"],
            "requires the backend xgrammar or guidance",
        ),
        (["--kernel-config.zzz", "1"], "unknown field `zzz`"),
        (["--eplb-config", '{"window_size": 0}'], "window_size must be greater than 0, got 0"),
        (["--reasoning-config.zzz", "1"], "unknown field `zzz`"),
        (["--pooler-config", '{"pooling_type": "LAST", "seq_pooling_type": "CLS"}'], "exclude"),
        (["--pooler-config", '{"task": "score"}'], "task must be one of embed, classify"),
        (["--profiler-config", '{"profiler": "torch"}'], "torch_profiler_dir is required"),
        (["--weight-transfer-config.zzz", "1"], "unknown field `zzz`"),
        (["--ir-op-priority.zzz", "1"], "unknown field `zzz`"),
        (["--quantization-config.zzz", "1"], "unknown field `zzz`"),
        (["--kv-transfer-config", '{"kv_rank": 0}'], "vLLM removed it in 0.32"),
    ],
)
def test_unknown_key_or_wrong_value_of_an_object_is_rejected(words: list[str], error: str) -> None:
    option = words[0].partition(".")[0]
    text = refusal(*words)
    assert text.startswith(f"flag {option}: ") and error in text


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("compilation-config", '{"mode": "vllm_compile", "cudagraph_mode": "full_decode_only"}'),
        ("compilation-config", '{"mode": null, "cudagraph_capture_sizes": ["1", 2.0, true]}'),
        (
            "compilation-config",
            '{"cudagraph_copy_inputs": "off", "max_cudagraph_capture_size": 1k}',
        ),
        ("attention-config", '{"backend": "flash_attn"}'),
        ("attention-config", '{"backend": "auto"}'),
        ("kernel-config", '{"moe_backend": "DEEP-GEMM"}'),
        ("ir-op-priority", '{"rms_norm": "a,b"}'),
        ("pooler-config", '{"dimensions": "64", "use_activation": 1}'),
    ],
)
def test_values_that_pydantic_converts_are_accepted(option: str, text: str) -> None:
    read_object(option, "0.32", text)
    flags("m", f"--{option}", text)


def test_sizes_in_objects_are_plain_numbers() -> None:
    text = read_object("pooler-config", "0.32", '{"max_embed_len": 2k}')
    assert text == '{"max_embed_len": 2000}'
    assert "must be valid JSON" in refusal("--pooler-config", '{"max_embed_len": 2x}')


def test_objects_of_a_later_version_have_its_keys() -> None:
    known = ["m", "--vllm-version", "0.33", "--watchdog-config", "{}"]
    assert flags(*known).values["model"] == "m"
    with pytest.raises(ConfigError, match="unknown field `zzz`"):
        flags("m", "--vllm-version", "0.33", "--watchdog-config", '{"zzz": 1}')


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--enable-auto-tool-choice"], "--enable-auto-tool-choice requires --tool-call-parser"),
        (["--enable-log-outputs"], "--enable-log-outputs requires --enable-log-requests"),
        (["--sse-keep-alive-interval", "-1"], "--sse-keep-alive-interval: must be at least 0"),
        (
            ["--enable-per-request-metrics", "--disable-log-stats"],
            "--enable-per-request-metrics cannot be used with --disable-log-stats",
        ),
        (GRPC, "--grpc-port requires the environment variable VLLM_USE_RUST_FRONTEND=1"),
        (["--grpc", *GRPC], "--grpc-port cannot be used with --grpc"),
        (
            ["--max-num-seqs", "65", "--max-num-batched-tokens", "64"],
            "--max-num-seqs: 65 must not be more than --max-num-batched-tokens (64)",
        ),
        (
            ["--max-num-seqs", "8", "--max-num-active-seqs", "9"],
            "--max-num-active-seqs: 9 must not be more than --max-num-seqs (8)",
        ),
        (["--lora-modules", "a"], "--lora-modules: 'a' must be NAME=PATH or JSON"),
        (["--chat-template", "./none.jinja"], "--chat-template: './none.jinja' does not exist"),
        (["--chat-template", "examples/tool_chat_template_hermes.jinja"], "does not exist"),
    ],
)
def test_combination_that_vllm_rejects_is_rejected(words: list[str], error: str) -> None:
    assert error in refusal(*words)


def test_combinations_that_vllm_accepts_are_accepted() -> None:
    flags("m", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    flags("m", "--max-num-seqs", "64", "--max-num-batched-tokens", "64")
    flags("m", "--chat-template", "{{ messages }}")
    flags("m", *GRPC, environ={"VLLM_USE_RUST_FRONTEND": "1"})


def test_missing_chat_template_is_a_warning_without_the_check_of_the_model() -> None:
    result = flags("m", "--skip-model-check", "--chat-template", "./none.jinja")
    assert result.warnings == [
        "--chat-template: ./none.jinja does not exist, the tokenizer's template is used"
    ]


@pytest.mark.parametrize(
    ("words", "plugin"),
    [
        (["--quantization", "ascend"], "vllm-ascend"),
        (
            ["--kv-transfer-config", '{"kv_connector": "UCMConnector", "kv_role": "kv_both"}'],
            "vllm-ascend",
        ),
    ],
)
def test_name_that_a_plugin_adds_starts_with_a_warning(words: list[str], plugin: str) -> None:
    assert any(f"the plugin {plugin} only" in line for line in flags("m", *words).warnings)


@pytest.mark.parametrize(
    ("keyword", "present", "absent"),
    [
        ("ModelConfig", "--max-model-len", "--max-num-seqs"),
        ("modelconfig", "--max-model-len", "--max-num-seqs"),
        ("max-num-seqs", "--max-num-seqs", "--max-model-len"),
        ("max_num", "--max-num-batched-tokens", "--max-model-len"),
        ("all", "--max-model-len", "No group"),
        ("listgroup", "No group or arguments matching 'listgroup'", "--max-model-len"),
        ("listgroup", "SchedulerConfig", "--max-model-len"),
    ],
)
def test_help_is_that_of_a_group_or_of_matching_options(
    keyword: str, present: str, absent: str
) -> None:
    result = flags(f"--help={keyword}")
    text = usage(settings_table(), result.help_keyword)
    assert result.help and present in text and absent not in text


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--lora-modules", '{"name": "a"}'], "--lora-modules: path is required"),
        (["--lora-modules", "a=b", '{"nmae": "a"}'], "field `nmae`; did you mean name?"),
        (["--compilation-config", ""], "flag --compilation-config: '' must be valid JSON"),
        (["--allowed-origins", "None"], "flag --allowed-origins: 'None' must be valid JSON"),
        (["--custom-histogram-buckets", "x"], "--custom-histogram-buckets: 'x' must be valid JSON"),
        (["--hf-overrides", '{"a": 8k}'], "flag --hf-overrides: '{\"a\": 8k}' must be valid JSON"),
        (["--middleware", "a", "b"], "unexpected argument 'b'"),
        (["--no-grpc"], "unknown flag --no-grpc"),
        (["-O", "9"], "unexpected argument '-O'"),
        (["--model", "n"], "unexpected argument 'm'"),
        (["--kv-transfer-config", "{}"], "kv_connector is required"),
        (["--hf-overrides", "x"], "flag --hf-overrides: 'x' must be valid JSON"),
        (["--hf-overrides", "[]"], "--hf-overrides: '[]' is wrong: the value must be an object"),
        (["--media-io-kwargs", '{"video": 3}'], "is wrong: video must be an object"),
        (["--limit-mm-per-prompt", '{"image": null}'], "is wrong: image must be a whole number"),
        (["-O.mode", "3"], "unexpected argument '3'"),
        (["--", "x"], "unexpected argument 'x'"),
    ],
)
def test_word_that_no_option_of_vllm_takes_is_rejected(words: list[str], error: str) -> None:
    assert error in refusal(*words)


def test_flag_is_not_the_model() -> None:
    with pytest.raises(ConfigError, match="unexpected argument '-O'"):
        flags("-O")


@pytest.mark.parametrize(
    "words",
    [
        ["--mm-processor-kwargs", "null"],
        ["--default-chat-template-kwargs", "[]"],
        ["--default-chat-template-kwargs", "null"],
        ["--allowed-origins", '["http://a", 1, null]'],
        ["--root-path", "x"],
        ["--moe-backend", "Deep-GEMM"],
        ["--max-num-queued-tokens", "1.5k"],
        ["--max-model-len", "AUTO"],
        ["--seed", "1_000"],
        ["--port", "+3000"],
        ["--hf-token"],
        ["--kv-transfer-config", ""],
        ["--"],
    ],
)
def test_word_that_vllm_reads_is_accepted(words: list[str]) -> None:
    resolve(flags("m", *words), {}, ignore_warning)


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["-qfp8"], "quantization", "fp8"),
        (["-q=fp8"], "quantization", "fp8"),
        (["-n2"], "nnodes", "2"),
        (["-t", "2"], "tensor-parallel-size", "2"),
    ],
)
def test_short_option_is_read_as_argparse_reads_it(words: list[str], name: str, value: str) -> None:
    assert read(["m", *words], settings_type())[0][name] == value


@pytest.mark.parametrize("words", [["-tp2"], ["-d", "2"]])
def test_short_option_that_argparse_refuses(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        read(["m", *words], settings_type())


@pytest.mark.parametrize("words", [["-O3"], ["-O=3"], ["-O", "3"], ["--optimization-level", "3"]])
def test_optimization_level_has_a_short_form(words: list[str]) -> None:
    assert read(["m", *words], settings_type())[0]["optimization-level"] == "3"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-Ox"], "flag --optimization-level: 'x' must be one of 0, 1, 2, 3"),
        (["--dp-sync-interval", "0"], "flag --dp-sync-interval: '0' must be at least 1"),
        (["--node-rank", "-1"], "flag --node-rank: '-1' must be at least 0"),
    ],
)
def test_value_that_ends_vllm_after_its_parser_is_rejected(words: list[str], error: str) -> None:
    assert error in refusal(*words, status=1)


def test_file_and_names_require_a_model(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("port: 8001\n")
    words = ("--config", str(file))
    for line in (words, ("--served-model-name", "x"), ("--served_model_name=x",)):
        with pytest.raises(ConfigError, match="requires a model") as caught:
            flags(*line)
        assert caught.value.status == 2
        assert flags(*line, environ={"SIM_MODEL": "m"}).values
        assert flags("--model", "n", *line[:2]).values["model"] == "n"
    file.write_text("model: n\n")
    assert flags(*words).values["model"] == "n"
    assert flags("m", *words).values["model"] == "m"
    file.write_text("")
    with pytest.raises(ConfigError, match="is empty"):
        flags("m", *words)


@pytest.mark.parametrize(
    ("option", "minimum"),
    [
        (name, 1 if name == "data-parallel-rpc-port" else 0)
        for name in OPTIONS
        if name.split("-")[-1] == "port"
    ],
)
def test_every_port_has_the_range_of_ports(option: str, minimum: int) -> None:
    flag = f"--{option}"
    frontend = {"VLLM_USE_RUST_FRONTEND": "1"}

    def told(value: str) -> str:
        with pytest.raises(ConfigError) as caught:
            flags("m", f"{flag}={value}", environ=frontend)
        return str(caught.value)

    assert told("65536") == f"flag {flag}: '65536' must be at most 65535"
    assert told("80000") == f"flag {flag}: '80000' must be at most 65535"
    assert told("-1") == f"flag {flag}: '-1' must be at least {minimum}"
    assert told("abc") == f"flag {flag}: 'abc' must be a whole number"
    flags("m", f"{flag}=65535", environ=frontend)


def test_ports_are_known() -> None:
    assert {"port", "grpc-port", "master-port", "data-parallel-rpc-port"} <= set(OPTIONS)


EMBEDDERS = "Embedding models do not support `--runner generate`."
OTHERS = "This model does not support `--runner generate`."


@pytest.mark.parametrize(
    ("version", "model", "error"),
    [
        ("0.33", "BAAI/bge-m3", EMBEDDERS),
        ("0.22", "BAAI/bge-reranker-v2-m3", EMBEDDERS),
        ("0.21", "BAAI/bge-m3", OTHERS),
        ("0.11", "BAAI/bge-m3", OTHERS),
    ],
)
def test_model_that_only_pools_does_not_generate(version: str, model: str, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        flags(model, "--vllm-version", version, "--runner", "generate")


@pytest.mark.parametrize("model", ["Qwen/Qwen3-Embedding-0.6B", "openai/whisper-large-v3", "a/b"])
def test_model_whose_class_generates_takes_the_runner(model: str) -> None:
    assert flags(model, "--runner", "generate").values["model"] == model


def test_skipped_check_of_the_model_starts_with_any_runner() -> None:
    words = ("BAAI/bge-m3", "--runner", "generate", "--skip-model-check")
    assert EMBEDDERS in flags(*words).model_warning
