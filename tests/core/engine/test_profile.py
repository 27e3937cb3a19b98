"""Profiles:

what they set, what is stronger, and what is wrong with one, in a line that names it.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from app.core import profiles
from app.core.built_in import present_extensions
from app.core.cli import main
from app.core.engine.profile import SHIPPED, read_profile, shipped_profiles
from app.core.settings import load
from config import ConfigError, Settings, loader
from config.sources import Flags, ignore_warning

NAME = "qwen3-14b-h100"


def changed(tmp_path: Path, **changes: Any) -> str:
    """A file like the shipped profile, with other values at `part.key`; None takes one out."""
    document = yaml.safe_load((SHIPPED / f"{NAME}.yaml").read_text())
    for place, value in changes.items():
        part, _, key = place.replace("_", "-").partition("--")
        inside = document[part] if key else document
        if value is None:
            del inside[key or part]
        else:
            inside[key or part] = value
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_shipped_profile_is_valid_and_cites_its_source(name: str) -> None:
    profile = read_profile(name)
    assert profile.source and profile.model and profile.device and profile.checked


def test_profile_sets_the_engine_settings_that_it_describes() -> None:
    settings = load(["--profile", NAME], {})
    assert (settings.steps.timing, settings.steps.profile, settings.steps.shared) == (
        "steps",
        NAME,
        True,
    )
    assert (settings.kvcache.kv_cache_size, settings.kvcache.block_size) == (18038, 16)
    assert (settings.scheduling.max_num_seqs, settings.steps.max_num_batched_tokens) == (256, 8192)
    assert settings.kvcache.enable_kvcache and settings.model.max_model_len == 40960


def test_step_timing_without_a_profile_uses_the_default_profile() -> None:
    assert load(["--timing", "steps"], {}) == load(["--profile", NAME], {})


def test_default_kv_cache_holds_two_full_contexts() -> None:
    defaults = load([], {})
    assert (
        (defaults.kvcache.kv_cache_size - 1) * defaults.kvcache.block_size
        >= defaults.model.max_model_len
        == 32_768
    )
    assert load(["--enable-kvcache"], {}).kvcache == replace(defaults.kvcache, enable_kvcache=True)


def test_explicit_settings_override_the_profile(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("max-num-batched-tokens: 4096\n")
    argv = ["--profile", NAME, "--max-num-seqs", "64", "--config", str(file)]
    settings = load(argv, {"SIM_NUM_GPU_BLOCKS_OVERRIDE": "5000"})
    assert settings.scheduling.max_num_seqs == 64
    assert settings.steps.max_num_batched_tokens == 4096
    assert settings.kvcache.kv_cache_size == 5000


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--max-queue-size", "-1"], "flag --max-queue-size.* must be at least 0"),
        (
            ["--enable-kvcache", "--no-enable-prefix-caching"],
            "flag --enable-prefix-caching.* must not differ",
        ),
        (["--profile", "nobody"], "profile nobody"),
        (["--profile", NAME, "--max-num-batched-tokens", "255"], "setting max-num-batched-tokens"),
        (["--profile", NAME, "--kv-cache-size", "100"], "setting kv-cache-size"),
        (["--profile", NAME, "--no-enable-chunked-prefill"], "setting enable-chunked-prefill"),
        (["--timing", "stepwise"], "setting timing"),
    ],
)
def test_error_names_the_setting_that_contradicts_the_profile(argv: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as error:
        load(argv, {})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"cost--weights": -1e-3}, "weights"),
        ({"cost--p": 0.5}, "cost"),
        ({"cost--per_token": "fast"}, "per-token"),
        ({"cost": None}, "cost"),
        ({"speculation": {"acceptance": [1.5]}}, "acceptance"),
        ({"source": None}, "source"),
    ],
)
def test_invalid_profile_is_rejected(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    path = changed(tmp_path, **changes)
    with pytest.raises(ConfigError, match=named) as error:
        load(["--profile", path], {})
    assert path in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["--profile", "auto"], "profile"),
        (["--profile", "auto", "--device", "h100"], "profile"),
        (["--profile", NAME, "--device", "h100"], "device"),
        (["--timing", "steps", "--device", "h100"], "device"),
    ],
)
def test_setting_that_requires_the_missing_lab_extension_is_rejected(
    argv: list[str],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    others = [extension for extension in present_extensions() if extension.name != "costs"]
    monkeypatch.setattr(profiles, "present_extensions", lambda: others)
    assert main(argv) == 1
    error = (
        f"error: setting {name}: requires the extension 'costs', which this server does not have\n"
    )
    assert capsys.readouterr() == ("", error)


def test_profile_file_can_be_loaded_without_any_app_extension(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(profiles, "present_extensions", tuple)
    settings = load(["--profile", NAME, "--device", "cuda"], {})
    assert settings.kvcache.kv_cache_size == 18038


def test_profile_settings_of_missing_app_extensions_are_ignored() -> None:
    """`engine-step-time` of the profile is a setting of the extension `llm`."""
    profile = read_profile("smollm2-135m-cpu")
    assert profile.engine.engine_step_time is not None
    settings = loader.resolve(
        Flags(values={"timing": "steps"}),
        {},
        ignore_warning,
        base=Settings,
        profile_limits=lambda settings, decided: profile.settings(),
    )
    assert settings.scheduling.max_num_seqs == profile.engine.max_num_seqs
