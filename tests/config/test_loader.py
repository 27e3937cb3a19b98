"""Where a setting comes from, how it and a duration are written, and how it is handed to another
process.
"""

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app.core.settings import load, settings_table, settings_type
from config import ConfigError
from config.durations import DURATION_RULE, MAX_NANOSECONDS, format_duration, parse_duration
from config.sources import REMOVED
from scripts.settings_tables import settings_page
from tests.application import handed_over

TABLE = settings_table().rows
BY_NAME = settings_table().by_name

Write = Callable[[str], str]


def warnings(argv: list[str], environ: dict[str, str] | None = None) -> list[str]:
    warned: list[str] = []
    load(argv, environ or {}, warned.append)
    return warned


# Precedence


def test_defaults_apply_without_any_configuration_source() -> None:
    assert load((), {}) == load([], {}) == settings_type()()


def test_configuration_source_with_the_highest_precedence_sets_the_value(yaml_file: Write) -> None:
    file = yaml_file("port: 1\nmax-num-seqs: 1\nmax-model-len: 1")
    environ = {"SIM_CONFIG": file, "SIM_PORT": "2", "SIM_MAX_NUM_SEQS": "2"}
    settings = load(["--port", "3"], environ)
    assert (
        settings.server.port,
        settings.scheduling.max_num_seqs,
        settings.model.max_model_len,
    ) == (3, 2, 1)
    assert settings.log == settings_type()().log


def test_config_flag_overrides_its_environment_variable(yaml_file: Write) -> None:
    assert load(["--config", yaml_file("port: 7")], {"SIM_CONFIG": "/nowhere"}).server.port == 7
    assert load(["--config="], {"SIM_CONFIG": "/nowhere"}) == settings_type()()


def test_list_setting_replaces_the_list_of_a_lower_precedence_source(yaml_file: Write) -> None:
    file = yaml_file("served-model-name: [a, b]")
    assert load(["--config", file], {}).model.served_names == ("a", "b")
    assert load(["--config", file, "--served-model-name", "c"], {}).model.served_names == ("c",)
    emptied = load(["--config", file, "--model", "m", "--served-model-name"], {}).model
    assert emptied.served_names == ("m",)


# Syntaxes


@pytest.mark.parametrize(
    ("argv", "group", "expected"),
    [
        (["--port", "1", "--port", "5"], "server.port", 5),
        (["--seed", "-5"], "reply.seed", -5),
        (["--seed="], "reply.seed", None),
        (["--global-cache-hit-threshold", ".5"], "kvcache.global_cache_hit_threshold", 0.5),
        (["--model", "-x"], "model.model", "-x"),
        (["--access-log=false"], "log.access_log", False),
        (["--access-log", "--no-access-log"], "log.access_log", False),
        (["--latency-calculator="], "latency.latency_calculator", ""),
        (["--mode", "ECHO"], "reply.mode", "echo"),
        (["--served-model-name", "a,b", "", "c"], "model.served_model_name", ("a", "b", "c")),
        (["--api-key", '["a,b"]', "c"], "access.api_key", ("a,b", "c")),
        (["--lora-modules", '{"name":"a","x":1}'], "lora.lora_modules", ('{"name":"a","x":1}',)),
        (["--served-model-name", "a", "-v", "5"], "model.served_model_name", ("a",)),
        (["--use-vllm-map-event-format=false"], "kvcache.events_layout", "llm-d-inference-sim"),
        (
            ["--no-use-vllm-map-event-format", "--kv-events-format", "0.20"],
            "kvcache.events_layout",
            "0.20",
        ),
        (["--v=4"], "log.log_level", "debug"),
        (["-v=1"], "log.log_level", "warning"),
        (["-v", "5", "--log-level", "error"], "log.log_level", "error"),
    ],
)
def test_flags_accept_every_documented_syntax(argv: list[str], group: str, expected: Any) -> None:
    assert attrgetter(group)(load(argv, {})) == expected


@pytest.mark.parametrize(
    ("name", "text", "group", "expected"),
    [
        ("SIM_SERVED_MODEL_NAME", "a, b", "model.served_model_name", ("a", "b")),
        ("SIM_SERVED_MODEL_NAME", '["a,b"]', "model.served_model_name", ("a,b",)),
        ("SIM_ACCESS_LOG", "off", "log.access_log", False),
        ("SIM_PORT", "", "server.port", 8000),
        ("SIM_SEED", '""', "reply.seed", None),
        ("SIM_INTER_TOKEN_LATENCY", "1m30s", "latency.inter_token_latency", 90.0),
        ("HF_TOKEN", "secret", "tokenizer.hf_token", "secret"),
    ],
)
def test_environment_variables_accept_every_documented_syntax(
    name: str, text: str, group: str, expected: Any
) -> None:
    assert attrgetter(group)(load((), {name: text})) == expected


@pytest.mark.parametrize(
    ("text", "group", "expected"),
    [
        ("port: '5'", "server.port", 5),
        ("access-log: yes", "log.access_log", True),
        ("seed: null", "reply.seed", None),
        ("latency-calculator: ''", "latency.latency_calculator", ""),
        ("served-model-name: one", "model.served_model_name", ("one",)),
        ("# nothing", "server.port", 8000),
    ],
)
def test_yaml_accepts_every_documented_syntax(
    yaml_file: Write, text: str, group: str, expected: Any
) -> None:
    assert attrgetter(group)(load(["--config", yaml_file(text)], {})) == expected


# Warnings


@pytest.mark.parametrize(
    "argv", [["--enforce-eager"], ["--ec_transfer_config", "{}"], ["--logtostderr", "true"]]
)
def test_vllm_and_klog_flags_are_ignored_with_one_warning(argv: list[str]) -> None:
    (warning,) = warnings([*argv, "--port", "1"])
    assert warning.endswith("is accepted and ignored")


@pytest.mark.parametrize(("name", "successor"), REMOVED.items())
def test_error_for_a_removed_setting_names_the_replacement(
    yaml_file: Write, name: str, successor: str
) -> None:
    variable = "SIM_" + name.replace("-", "_").upper()
    for argv, environ, written in (
        ([f"--{name}", "1"], {}, f"flag --{name}"),
        (["--config", yaml_file(f"{name}: 1")], {}, f": {name}"),
        ([], {variable: "1"}, f"environment variable {variable}"),
    ):
        with pytest.raises(ConfigError) as raised:
            load(argv, environ)
        assert str(raised.value).endswith(f"{written} was removed: {successor}")
        assert raised.value.status == 1
    assert load([], {variable: ""}) == load([], {})
    assert f"| `{name}` | {successor} |" in settings_page().markdown() and name not in BY_NAME


def test_alias_of_a_setting_can_be_used_in_every_configuration_source(yaml_file: Write) -> None:
    file = yaml_file("num_blocks: 7\nmax-seq-length: null")
    assert load(["--config", file], {}).kvcache.kv_cache_size == 7
    assert load(["--config", file], {"SIM_NUM_BLOCKS": "8"}).kvcache.kv_cache_size == 8
    assert load(["--kv-cache-size", "9"], {"SIM_NUM_BLOCKS": "8"}).kvcache.kv_cache_size == 9
    assert load(["--num-blocks", "9", "--kv-cache-size=9"], {}).kvcache.kv_cache_size == 9
    assert load(["--enable-kvcache=1", "--enable-prefix-caching"], {}).kvcache.enable_kvcache
    assert not load(
        ["--no-enable-prefix-caching"], {"SIM_ENABLE_KVCACHE": "true"}
    ).kvcache.enable_kvcache
    small = load(
        ["--engine", "llm", "--num-blocks", "64", "--max-queue-size", "3"],
        {"SIM_MAX_SEQ_LENGTH": "512"},
    )
    assert (small.kvcache.kv_cache_size, small.model.max_model_len) == (64, 512)
    assert small.scheduling.max_waiting_queue_length == 3
    with pytest.raises(
        ConfigError, match=r"num-blocks\) must not differ from 8 \(YAML file .*same"
    ):
        load(["--config", yaml_file("kv-cache-size: 8\nnum-blocks: 9")], {})


def test_ignored_keys_and_unknown_variables_are_reported_as_warnings(yaml_file: Write) -> None:
    file = yaml_file("enforce-eager: true\nzmq-max-connect-attempts: 3")
    environ = {"SIM_FOO": "1", "SIM_BAR": "2", "SIM_PORT": "1", "SIM_CONFIG": file}
    ignored, also, unknown = warnings([], environ)
    assert "enforce-eager is accepted and ignored" in ignored
    assert "zmq-max-connect-attempts is accepted and ignored" in also
    assert unknown == "not a setting, ignored: environment variable SIM_BAR, SIM_FOO"


# The table and the dump


def test_every_setting_has_a_unique_name_and_a_parsable_default() -> None:
    for row in TABLE:
        assert row.name == row.attribute.replace("_", "-")
        assert row.env[0] == "SIM_" + row.attribute.upper()
        assert row.read(row.write(row.default)) == row.default
        assert row.help.endswith(".")
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_settings_dump_shows_every_setting_and_masks_secrets() -> None:
    argv = ["--hf-token", "hf_x", "--client-timeout", "90s", "--served-model-name", "a", "b"]
    settings = load(argv, {})
    shown = settings.dump()
    assert list(shown) == [row.name for row in TABLE]
    assert shown["hf-token"] == "***"
    assert (shown["client-timeout"], shown["served-model-name"], shown["seed"]) == (
        "1m30s",
        ["a", "b"],
        None,
    )
    assert settings.dump(masked=False)["hf-token"] == "hf_x"


@pytest.mark.parametrize(
    "argv",
    [
        ["--served-model-name", "a,b", "c", "--inter-token-latency", "1500us"],
        ["--served-model-name", "[x]", "--time-factor-under-load", "1.1"],
        [
            "--latency-calculator",
            "",
            "--seed=",
            "--served-model-name",
            "--pod-name",
            "z",
            "--port",
            "2",
        ],
        ["--chat-template", "{{ 'a\n' }}", "--hf-token", "hf_x"],
    ],
)
def test_flags_converted_to_environment_variables_give_the_same_settings(
    tmp_path: Path, argv: list[str]
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("latency-calculator: constant\nserved-model-name: [a]\npod-name: y\nport: 7")
    stronger = {"SIM_CONFIG": str(file), "POD_NAME": "x", "SIM_PORT": "1", "SIM_SEED": "1"}
    for environ in ({}, stronger):
        assert load((), handed_over(argv, environ)) == load(argv, environ)


def test_paths_are_exported_as_written_with_the_folder_where_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.yaml").write_text("chat-template: template.jinja")
    variables = handed_over(["--config", "settings.yaml", "--model", "./folder"])
    assert variables == {
        "UNDERSTUDY_FOLDER": str(tmp_path),
        "SIM_CONFIG": "settings.yaml",
        "SIM_MODEL": "./folder",
    }


def test_command_in_a_deleted_folder_exports_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert handed_over([]) == {"UNDERSTUDY_FOLDER": ""}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("allowed-headers", st.lists(st.text(max_size=20), max_size=8).map(tuple)),
        ("access-log", st.booleans()),
        ("client-timeout", st.integers(1, 10**15).map(lambda nanoseconds: nanoseconds / 1e9)),
        ("max-tool-call-integer-param", st.integers(-(2**63), 2**63 - 1)),
        ("max-tool-call-number-param", st.floats(allow_nan=False, allow_infinity=False)),
        ("seed", st.none() | st.integers(-(2**63), 2**63 - 1)),
    ],
)
def test_written_setting_value_parses_to_the_same_value(
    name: str, values: st.SearchStrategy[Any]
) -> None:
    row = BY_NAME[name]

    @hypothesis_settings(max_examples=30)
    @given(values)
    def round_trip(value: Any) -> None:
        assert row.read(row.write(value)) == value

    round_trip()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1m30s", 90),
        ("1h0m0s", 3600),
        ("1h1m1.5s", 3661.5),
        ("7ns", 7e-9),
        ("100µs", 0.0001),
        ("-20ms", -0.02),
    ],
)
def test_duration_is_parsed_and_formatted_as_in_go(text: str, seconds: float) -> None:
    assert parse_duration(text) == parse_duration(f" {text} ") == seconds
    assert format_duration(seconds) == text
    assert (parse_duration(500), format_duration(0.9999999999)) == (0.5, "1s")


def test_invalid_duration_is_rejected_with_an_explanation() -> None:
    wrong: list[object] = [
        "",
        "10 ms",
        "s",
        "1.5",
        "1d",
        "1m30",
        "ms1",
        "1e3s",
        "--1s",
        "½s",
        "1s" * 33,
    ]
    wrong += [True, None, 0.5, [], {}]
    too_long = ["9999999h", 10**18, "-9999999h"]
    for value, rule in (
        *((wrong_value, DURATION_RULE) for wrong_value in wrong),
        *((wrong_value, "292 years") for wrong_value in too_long),
    ):
        with pytest.raises(ValueError) as caught:
            parse_duration(value)
        assert rule in str(caught.value), value


@given(st.text(max_size=80))
def test_duration_parser_raises_only_its_documented_error_for_any_text(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        assert str(error).startswith("must be a duration")
    else:
        assert abs(seconds) <= MAX_NANOSECONDS / 1e9
