"""The options of a stranger's command line that a stand-in may get: a list of what passes."""

from __future__ import annotations

import json

import pytest

from app.core.settings import settings_table
from vllm_facts.facts import OPTIONS
from vllm_facts.foreign_options import (
    foreign_options,
    may_alter_answers,
    modules_in,
    passing_value,
)
from vllm_facts.history import read_history

PAST_OPTIONS = {form.removeprefix("--") for form in read_history().options}
ALL_OPTIONS = sorted({*OPTIONS, *PAST_OPTIONS})
NAMING = (
    *("middleware", "plugin", "tool-parser-plugin", "installed-plugins"),
    *("tokenizer", "tokenizers-cache-dir", "chat-template", "script", "replay", "profile"),
    *("model-config", "dataset-path", "ssl-certfile", "ssl-keyfile", "require-lora-files"),
    *("host", "port", "uds", "grpc", "grpc-port", "pod-ip", "target", "render-url", "dataset-url"),
    *("otlp-traces-endpoint", "zmq-endpoint", "kv-events-replay-endpoint", "kv-index-redis-url"),
    *("kv-connector", "kv-side-channel-host", "kv-side-channel-port", "lmcache-receiver"),
    *("moriio-proxy", "data-parallel-supervisor-port", "engine", "hf-token", "api-key"),
)
"""Settings that name code, files, hosts, or ports, or with which a server reads or opens more."""
SAFE_EFFECTS = {"kv-offloading-size": "kv-connector"}
"""Option -> setting of `NAMING` that it sets to a value without a file or a host."""


def test_each_option_of_all_versions_is_classified_once() -> None:
    options = foreign_options()
    passing = {*options.passes, *options.values}
    refused = {*options.alters_answers, *options.alters_nothing}
    assert sorted(passing | refused) == ALL_OPTIONS
    assert options.passes.isdisjoint(refused | set(options.values))
    assert options.alters_answers.isdisjoint(options.alters_nothing)


def test_option_that_is_not_listed_is_refused() -> None:
    assert passing_value("option-of-next-year", "1") is None
    assert may_alter_answers("option-of-next-year")


@pytest.mark.parametrize("name", ALL_OPTIONS)
def test_option_passes_exactly_if_it_is_listed(name: str) -> None:
    options = foreign_options()
    value = '{"a": 1}' if OPTIONS.get(name) and OPTIONS[name].kind == "JSON" else "1"
    assert (passing_value(name, value) is not None) is (name in options.passes)


@pytest.mark.parametrize("setting", [row.name for row in settings_table().rows])
def test_settings_pass_only_as_options_of_vllm(setting: str) -> None:
    if setting in foreign_options().passes:
        assert setting in ALL_OPTIONS
        assert setting not in NAMING
    else:
        assert passing_value(setting, "value") is None


def test_options_that_pass_set_no_setting_that_names_code_files_or_hosts() -> None:
    assert [name for name in NAMING if name not in settings_table().by_name] == []
    for name in foreign_options().passes:
        option = OPTIONS.get(name)
        setting = option.setting if option is not None else ""
        assert (setting or name) not in NAMING or SAFE_EFFECTS.get(name) == setting, name


@pytest.mark.parametrize(
    ("name", "value", "passing"),
    [
        ("generation-config", "vllm", "vllm"),
        ("generation-config", "/etc", None),
        ("generation-config", "vllm\n/etc", None),
        ("logits-processors", ["vllm.a:B"], ["vllm.a:B"]),
        ("logits-processors", ["vllm.a:B", "stranger:C"], None),
        ("distributed-executor-backend", "mp", "mp"),
        ("distributed-executor-backend", "stranger.Executor", None),
        ("spec-model", "/models/eagle", "eagle"),
        ("served-model-name", ["a", "--middleware=stranger.mw"], None),
        ("served-model-name", ["a\0b"], None),
        ("max-model-len", "-1", "-1"),
        ("fingerprint-value", "-x", None),
    ],
)
def test_value_that_names_a_file_or_another_flag_does_not_pass(
    name: str, value: str | list[str], passing: str | list[str] | None
) -> None:
    assert passing_value(name, value) == passing


def test_draft_model_of_a_folder_keeps_its_name() -> None:
    text = json.dumps({"method": "eagle3", "model": "/etc/eagle", "num_speculative_tokens": 2})
    passing = passing_value("speculative-config", text)
    assert json.loads(str(passing)) == {
        "method": "eagle3",
        "model": "eagle",
        "num_speculative_tokens": 2,
    }


def test_modules_are_found_in_options_and_in_their_objects() -> None:
    values: dict[str, str | list[str]] = {
        "middleware": ["a.B", "c.D"],
        "worker-cls": "e.F",
        "distributed-executor-backend": "mp",
        "kv-transfer-config": '{"kv_connector": "X", "kv_connector_module_path": "g.h"}',
        "model-class-overrides": '{"Y": "i:J"}',
        "structured-outputs-config": "no JSON",
    }
    assert sorted(modules_in(values)) == [
        ("kv-transfer-config", "g.h"),
        ("middleware", "a.B"),
        ("middleware", "c.D"),
        ("model-class-overrides", "i:J"),
        ("worker-cls", "e.F"),
    ]
