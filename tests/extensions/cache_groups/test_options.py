"""The setting kv-cache-groups, and the files that it names."""

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given

from app.core.settings import load
from app.extensions.cache_groups import CacheGroups
from app.extensions.cache_groups.layers import GroupSpec, group_layers
from app.extensions.cache_groups.presets import PRESETS, read_layers
from config import ConfigError
from tests.application import app_of
from tests.drawn import drawn_examples
from tests.hostile_data import hostile_contents

FULL = GroupSpec("full_attention")
LINEAR = GroupSpec("mamba")
GEMMA_3_27B = {
    "text_config": {"num_hidden_layers": 62, "sliding_window": 1024, "sliding_window_pattern": 6}
}


def write(path: Path, config: object) -> str:
    """Writes a model's config.json; returns its path."""
    file = path / "config.json"
    file.write_text(json.dumps(config), "utf-8")
    return str(file)


def test_presets_have_the_cache_groups_of_their_models() -> None:
    groups = {name: group_layers(layers) for name, layers in PRESETS.items()}

    assert groups == {
        "gpt-oss": [GroupSpec("sliding_window", 128), FULL],
        "gemma-3": [*[GroupSpec("sliding_window", 1024)] * 5, FULL],
        "qwen3-next": [LINEAR, LINEAR, LINEAR, FULL],
    }


@pytest.mark.parametrize(
    ("config", "groups"),
    [
        (GEMMA_3_27B, [*[GroupSpec("sliding_window", 1024)] * 6, FULL]),
        ({"num_hidden_layers": 48, "full_attention_interval": 4}, [LINEAR, LINEAR, LINEAR, FULL]),
        (
            {"layer_types": ["sliding_attention", "full_attention"] * 12, "sliding_window": 128},
            [GroupSpec("sliding_window", 128), FULL],
        ),
        ({"layer_types": ["conv", "conv", "attention"]}, [LINEAR, LINEAR, FULL]),
    ],
)
def test_model_config_file_determines_the_cache_groups(
    config: object, groups: list[GroupSpec], tmp_path: Path
) -> None:
    assert group_layers(read_layers(write(tmp_path, config))) == groups


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "a hybrid model must have both full attention"),
        ({"layer_types": ["chunked_attention"]}, "layers of type chunked_attention are not"),
        ({"layer_types": ["full_attention"]}, "a hybrid model must have both full attention"),
        (
            {"layer_types": ["sliding_attention"], "sliding_window": 8},
            "a hybrid model must have both",
        ),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window must be at"),
        ({"layer_types": 3}, "Expected `array`, got `int`"),
        (
            {"num_hidden_layers": 9**9, "full_attention_interval": 2},
            r"Expected `int` <= 1024 - at `\$.num_hidden_layers`",
        ),
        (
            {"layer_types": ["full_attention", *["linear_attention"] * 64]},
            "these layers require 65 groups; the maximum is 64",
        ),
    ],
)
def test_model_config_without_usable_layers_is_rejected(
    config: object, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=problem):
        group_layers(read_layers(write(tmp_path, config)))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            ["--kv-cache-groups", "/none"],
            "setting kv-cache-groups: /none is neither one of gpt-oss, ",
        ),
        (
            ["--kv-cache-groups", "gpt-oss", "--prefix-cache-retention-interval", "40"],
            r"setting prefix-cache-retention-interval: 40 is not a multiple of block-size \(16\)",
        ),
        (
            ["--kv-cache-groups", "gpt-oss", "--kv-connector", "nixl"],
            "setting kv-cache-groups: kv-connector nixl supports only one group",
        ),
        (
            ["--kv-cache-groups", "gemma-3", "--kv-cache-size", "12"],
            "setting kv-cache-size: 6 groups require more than 12 blocks",
        ),
    ],
)
def test_cache_groups_with_conflicting_settings_prevent_startup(
    flags: list[str], problem: str
) -> None:
    with pytest.raises(SystemExit, match=problem):
        app_of("--enable-kvcache", *flags)


def test_cache_groups_without_a_cache_prevent_startup() -> None:
    settings = load(["--kv-cache-groups", "gpt-oss"], {})

    with pytest.raises(ConfigError, match="setting kv-cache-groups: requires enable-kvcache and"):
        CacheGroups.prepare(settings)


def test_repeated_prompt_hits_all_cache_groups() -> None:
    client = app_of(
        "--enable-kvcache", "--kv-cache-groups", "gpt-oss", "--zmq-endpoint", ""
    ).test_client()
    question = {"prompt": list(range(200)), "max_tokens": 1}

    for _ in range(2):
        assert client.post("/v1/completions", json=question).status_code == 200

    metrics = client.get("/metrics").text
    [hits] = [line for line in metrics.splitlines() if line.startswith("vllm:prefix_cache_hits_t")]
    assert hits.endswith(" 192.0")


def test_cache_has_one_group_by_default() -> None:
    app = app_of("--enable-kvcache", "--zmq-endpoint", "")

    assert CacheGroups.name not in {extension.name for extension in app.extensions}


@drawn_examples(60)
@given(hostile_contents(json.dumps(GEMMA_3_27B).encode()))
def test_hostile_config_raises_at_most_a_value_error(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_bytes(content)
        with suppress(ValueError):
            group_layers(read_layers(str(path)))
