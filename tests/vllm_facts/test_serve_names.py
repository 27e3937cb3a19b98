"""What vLLM refuses when it starts, beyond its parser:

unknown names, numbers out of range, conflicts.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from app.core import cli
from app.core.server.gunicorn.ranks import addresses, rank_of
from app.core.settings import resolve, settings_type
from config import ConfigError
from config.sources import ignore_warning
from vllm_facts.facts import OPTIONS
from vllm_facts.serve import settings_of


def refusal(*argv: str, status: int = 1) -> str:
    with pytest.raises(ConfigError) as caught:
        settings_of(["model", *argv], {}, settings_type())
    assert caught.value.status == status
    text = str(caught.value)
    assert "\n" not in text
    return text


def is_accepted(*argv: str) -> bool:
    settings_of(["model", *argv], {}, settings_type())
    return True


def transfer(**fields: object) -> list[str]:
    return ["--kv-transfer-config", json.dumps({"kv_role": "kv_both", **fields})]


NAMED = [name for name, option in OPTIONS.items() if option.names]


def test_options_that_accept_only_known_names_are_the_same_as_in_vllm() -> None:
    assert NAMED == [
        "tool-call-parser",
        "quantization",
        "reasoning-parser",
        "load-format",
        "attention-backend",
        "mamba-backend",
        "distributed-executor-backend",
        "data-parallel-backend",
        "mm-encoder-attn-backend",
        "optimization-level",
    ]


@pytest.mark.parametrize("name", NAMED)
def test_error_for_an_unknown_option_value_lists_the_known_names(
    name: str,
) -> None:
    option = OPTIONS[name]
    text = refusal(f"--{name}", "nonsense")
    assert text.startswith(f"flag --{name}: 'nonsense' must be one of ")
    assert text.endswith(", ".join(option.names))
    assert all(is_accepted(f"--{name}", value) for value in option.names)


def test_misspelled_option_value_is_rejected_with_a_suggestion() -> None:
    assert refusal("--tool-call-parser", "hermez").endswith("; did you mean hermes?")
    assert refusal("--quantization=fp9").startswith("flag --quantization: 'fp9' must be one of ")
    assert refusal("-q", "gptc").endswith("; did you mean gptq?")
    assert refusal("--reasoning-parser", "foo").startswith(
        "flag --reasoning-parser: 'foo' must be one of "
    )


def test_parser_plugin_file_allows_any_name_for_that_kind_of_parser() -> None:
    assert is_accepted("--tool-call-parser", "ours", "--tool-parser-plugin", "/plugins/ours.py")
    assert is_accepted(
        "--reasoning-parser", "ours", "--reasoning-parser-plugin", "/plugins/ours.py"
    )
    assert "must be one of" in refusal("--tool-call-parser", "ours", "--tool-parser-plugin", "")
    assert "must be one of" in refusal(
        "--tool-call-parser", "ours", "--reasoning-parser-plugin", "/x.py"
    )


def test_backend_options_accept_lowercase_names_or_an_import_path() -> None:
    assert is_accepted("--attention-backend", "flash_attn")
    assert is_accepted("--mamba-backend", "triton")
    assert is_accepted("--distributed-executor-backend", "package.module.Executor")
    assert refusal("--attention-backend", "flash_attm").endswith("did you mean FLASH_ATTN?")


def test_empty_and_none_values_are_accepted_as_in_vllm() -> None:
    assert is_accepted(
        "--quantization", "None", "--tool-call-parser", "", "--attention-backend", "None"
    )


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("gpu-memory-utilization", "1.5", "must be at most 1"),
        ("gpu-memory-utilization", "0", "must be greater than 0"),
        ("gpu-memory-utilization", "nan", "must be greater than 0"),
        ("cpu-offload-gb", "-1", "must be at least 0"),
        ("pipeline-parallel-size", "0", "must be at least 1"),
        ("video-pruning-rate", "1", "must be less than 1"),
    ],
)
def test_number_outside_the_range_of_its_option_is_rejected(
    name: str, value: str, rule: str
) -> None:
    assert refusal(f"--{name}={value}") == f"flag --{name}: '{value}' {rule}"
    assert is_accepted(f"--{name}", "0.5" if OPTIONS[name].kind == "float" else "1")


# --kv-transfer-config


def test_unknown_key_of_kv_transfer_config_is_rejected() -> None:
    text = refusal(*transfer(kv_conector="NixlConnector"), status=2)
    assert text.endswith("; did you mean kv_connector?")
    assert is_accepted(*transfer(kv_connector="NixlConnector", kv_buffer_device="cpu"))
    assert is_accepted(*transfer(kv_connector="NixlConnector", kv_load_failure_policy="recompute"))


def test_error_for_an_unknown_connector_lists_the_known_connectors() -> None:
    text = refusal(*transfer(kv_connector="P2pNccl"))
    assert "kv_connector 'P2pNccl' must be one of DecodeBenchConnector, ExampleConnector" in text
    assert "did you mean NixlConnector?" in refusal(*transfer(kv_connector="NixlConector"))
    inner = {
        "kv_connector_extra_config": {
            "connectors": [{"kv_connector": "Nixl", "kv_role": "kv_both"}]
        }
    }
    assert "kv_connector 'Nixl'" in refusal(*transfer(kv_connector="MultiConnector", **inner))


def test_any_connector_name_is_accepted_together_with_a_module_path() -> None:
    fields: Mapping[str, object] = {"kv_connector_module_path": "ours.connector"}
    assert is_accepted(*transfer(kv_connector="OurConnector", **fields))


def test_connector_without_a_role_is_rejected() -> None:
    argv = ("--kv-transfer-config", '{"kv_connector": "NixlConnector"}')
    text = refusal(*argv, status=2)
    assert "kv_role is required; it must be kv_producer, kv_consumer, or kv_both" in text


# --ec-transfer-config, --mm-processor-kwargs


@pytest.mark.parametrize(
    ("role", "encodes_only"), [("ec_producer", True), ("ec_consumer", False), ("ec_both", False)]
)
def test_only_the_ec_producer_role_restricts_a_server_to_encoding(
    role: str, encodes_only: bool
) -> None:
    config = json.dumps({"ec_connector": "ECExampleConnector", "ec_role": role})
    flags = settings_of(("model", "--ec-transfer-config", config), {}, settings_type())
    assert flags.warnings == []
    assert resolve(flags, {}, ignore_warning).model.mm_encoder_only == encodes_only


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (("--ec-transfer-config", '{"ec_connector": "x"}'), "ec_role is required"),
        (("--ec-transfer-config", '{"ec_role": "encoder"}'), "got 'encoder'"),
        (("--ec-transfer-config", '{"ec_rolle": "ec_both"}'), "did you mean ec_role?"),
        (("--mm-processor-kwargs", "[1]"), "Expected `object`, got `array`"),
    ],
)
def test_invalid_media_options_are_rejected(argv: tuple[str, ...], line: str) -> None:
    text = refusal(*argv, status=2 if argv[0] == "--ec-transfer-config" else 1)
    assert text.startswith(f"flag {argv[0]}: ") and line in text


# Data-parallel options


@pytest.mark.parametrize(
    "argv",
    [
        ("--data-parallel-external-lb", "--data-parallel-hybrid-lb"),
        ("--data-parallel-rank", "1", "--data-parallel-start-rank", "1"),
        ("--data-parallel-multi-port-external-lb", "--data-parallel-hybrid-lb"),
    ],
)
def test_load_balancing_modes_are_mutually_exclusive(argv: tuple[str, ...]) -> None:
    assert refusal(*argv).startswith(
        "cannot use more than one data parallel load balancing mode; choose one"
    )


def test_headless_node_rejects_api_server_options() -> None:
    assert "--api-server-count: 2 cannot be used with" in refusal(
        "--headless", "--api-server-count", "2"
    )
    assert "--data-parallel-hybrid-lb: cannot be" in refusal(
        "--headless", "--data-parallel-hybrid-lb"
    )
    text = refusal("--headless", "--data-parallel-size-local", "0")
    assert text == "flag --data-parallel-size-local: must be greater than 0 with --headless"
    argv = ("model", "--headless", "-dp", "4", "--data-parallel-start-rank", "2")
    assert settings_of(argv, {}, settings_type()).headless
    assert settings_of(("model", "--api-server-count", "0"), {}, settings_type()).headless
    assert not settings_of(("model", "--api-server-count", "1"), {}, settings_type()).headless


@pytest.mark.parametrize(
    ("argv", "engines", "ports"),
    [
        (("-dp", "4"), range(4), 1),
        (("-dp", "4", "-dpl", "2"), range(4), 1),
        (("-dp", "4", "-dpl", "2", "-dpr", "2"), range(2, 4), 1),
        (("-dp", "4", "-dpl", "2", "-dpr", "0"), range(4), 1),
        (("-dp", "4", "-dpl", "2", "--data-parallel-hybrid-lb"), range(2), 1),
        (("-dp", "16", "-dpl", "8", "-dpr", "8"), range(8, 16), 1),
        (("-dp", "4", "-dpl", "2", "--data-parallel-multi-port-external-lb"), range(2), 2),
        (("-dp", "4", "-dpl", "2", "-dpm", "--node-rank", "1"), range(2, 4), 2),
        (("-dp", "4", "-dpl", "2", "-dpm", "--node-rank", "1", "-dpr", "0"), range(2), 2),
        (("-dp", "4", "-dpn", "3"), range(3, 4), 1),
        (("-dp", "4", "--data-parallel-mode", "ports"), range(4), 4),
    ],
)
def test_data_parallel_options_determine_the_ranks_and_ports_of_a_node(
    argv: tuple[str, ...], engines: range, ports: int
) -> None:
    flags = settings_of(("model", *argv), {}, settings_type())
    server = resolve(flags, {}, ignore_warning).server
    assert (server.engine_ranks, len(addresses(server))) == (engines, ports)
    assert rank_of(server, {}) == engines[0]


@pytest.mark.parametrize(
    ("argv", "rule"),
    [
        ((), "--data-parallel-size must be at least 2"),
        (("-dp", "4"), "--data-parallel-size-local must be at least 2"),
        (("-dp", "4", "-dpl", "1"), "--data-parallel-size-local must be at least 2"),
        (("-dp", "4", "-dpl", "3"), "must be divisible by --data-parallel-size-local"),
        (
            ("-dp", "4", "-dpl", "2", "-dpr", "3"),
            "there would be more ranks than --data-parallel-size allows",
        ),
        (
            ("-dp", "4", "-dpl", "2", "--node-rank", "2"),
            "more ranks than --data-parallel-size allows",
        ),
        (("-dp", "4", "-dpl", "2", "--grpc"), "does not support --grpc"),
        (("-dp", "4", "-dpl", "2", "--uds", "/tmp/x"), "does not support --uds"),
        (("-dp", "4", "-dpl", "2", "--api-server-count", "2"), "requires --api-server-count 1"),
    ],
)
def test_multi_port_option_requires_other_data_parallel_options(
    argv: tuple[str, ...], rule: str
) -> None:
    text = refusal("--data-parallel-multi-port-external-lb", *argv)
    assert text.startswith("flag --data-parallel-multi-port-external-lb") and text.endswith(rule)


def test_supervisor_port_must_differ_from_the_rank_ports() -> None:
    argv = ("-dp", "2", "-dpl", "2", "--data-parallel-multi-port-external-lb", "--port", "9255")
    line = "flag --data-parallel-supervisor-port: 9256 is one of the ranks' ports, 9255 to 9256"
    assert refusal(*argv) == line


def test_data_parallel_size_local_above_data_parallel_size_is_rejected() -> None:
    text = refusal("-dp", "2", "-dpl", "3")
    assert text == "data_parallel_size_local (3) must be <= data_parallel_size (2)"


def test_invalid_value_exits_with_status_1_and_a_one_line_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["serve", "model", "--gpu-memory-utilization", "1.5"]) == 1
    assert (
        capsys.readouterr().err == "error: flag --gpu-memory-utilization: '1.5' must be at most 1\n"
    )


def test_error_for_a_misspelled_value_in_a_file_contains_a_suggestion(
    tmp_path: Path,
) -> None:
    file = tmp_path / "vllm.yaml"
    file.write_text("tool-call-parser: hermez\n")
    assert "did you mean hermes?" in refusal("--config", str(file))
