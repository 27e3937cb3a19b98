"""Profiles that servers compute from data sheets."""

import json
from pathlib import Path

import pytest

from app.core.application import create_app
from app.core.settings import load
from config import ConfigError
from tests.extensions.costs.test_datasheet import QWEN

NAME = "qwen3-14b-h100"
SMALL_STEPS = ("--max-num-batched-tokens", "256", "--max-num-seqs", "4", "--max-model-len", "64")


def model_config(folder: Path, **changes: object) -> str:
    """Returns a folder with a config.json, as a value of the setting."""
    (folder / "config.json").write_text(json.dumps({**QWEN, **changes}))
    return str(folder)


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--profile", "auto"], "profile auto: device is also required"),
        (["--profile", "auto", "--device", "h100"], "profile auto: model-config is also required"),
        (
            ["--profile", "auto", "--device", "h1000", "--model-config", "/nowhere"],
            "h1000|/nowhere",
        ),
        (["--profile", NAME, "--device", "h100"], "device requires profile auto"),
        (
            ["--profile", NAME, "--model-config", "/nowhere"],
            "model-config requires profile auto",
        ),
        (
            ["--timing", "steps", "--profile-vllm-version", "0.13"],
            f"profile {NAME}: profile-vllm-version requires profile auto",
        ),
    ],
)
def test_invalid_auto_profile_settings_prevent_startup_with_one_line(
    argv: list[str], error: str
) -> None:
    with pytest.raises(ConfigError, match=error) as raised:
        load(argv, {})
    assert "\n" not in str(raised.value)


def test_auto_profile_is_computed_from_data_sheets(tmp_path: Path) -> None:
    argv = ["--profile", "auto", "--device", "h100", "--model-config", model_config(tmp_path)]
    settings = load(argv, {})
    assert settings.steps.shared and settings.kvcache.kv_cache_size > 10_000
    assert settings.model.max_model_len == 40960


def test_smaller_step_limits_leave_more_memory_for_the_kv_cache(tmp_path: Path) -> None:
    argv = ["--profile", "auto", "--device", "h100", "--model-config", model_config(tmp_path)]
    large = load(argv, {})
    small = load([*argv, *SMALL_STEPS], {})
    assert small.scheduling.max_num_seqs == 4
    assert small.kvcache.kv_cache_size > large.kvcache.kv_cache_size


def test_large_model_needs_smaller_step_limits_to_fit_a_kv_cache(
    tmp_path: Path,
) -> None:
    path = model_config(tmp_path, num_hidden_layers=60)
    argv = ["--profile", "auto", "--device", "l40s", "--model-config", path]
    with pytest.raises(ConfigError, match="leave no room for a KV cache"):
        load(argv, {})
    settings = load([*argv, *SMALL_STEPS, "--force-dummy-tokenizer"], {})
    assert create_app(settings).test_client().get("/health").status_code == 200
