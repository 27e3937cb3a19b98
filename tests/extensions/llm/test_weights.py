"""Weights and configurations that cannot be used are one clear line."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.extensions.llm.device import DeviceManager
from app.extensions.llm.errors import ModelLoadError
from tests.extensions.llm.tiny import edit_config, make_engine, make_model

pytestmark = pytest.mark.engine

WEIGHTS = "model.safetensors"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    make_model(tmp_path)
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        make_engine(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_truncated_or_invalid_weights_are_rejected(broken: Path) -> None:
    tensors = load_file(broken / WEIGHTS)
    content = (broken / WEIGHTS).read_bytes()
    for size in (0, 5, 200, len(content) - 1):
        (broken / WEIGHTS).write_bytes(content[:size])
        assert "truncated" in refusal(broken)
    save_file(tensors | {UP: torch.zeros(96, 63)}, broken / WEIGHTS)
    assert refusal(broken) == (
        f"The tensor {UP} has the shape [96, 63], but the configuration requires [96, 64]."
    )
    del tensors[UP]
    save_file(tensors, broken / WEIGHTS)
    assert refusal(broken) == f"The weights do not contain the tensor {UP}."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "The architecture GPT2LMHeadModel is not supported",
        ),
        ({"hidden_size": "large"}, "Expected `int`, got `str` - at `$.hidden_size`"),
        ({"num_key_value_heads": 3}, "must be a multiple of"),
        ({"hidden_act": "gelu"}, "The activation gelu"),
        ({"use_sliding_window": True}, "Sliding-window"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "RoPE of type yarn"),
    ],
    ids=str,
)
def test_error_names_the_unsupported_model_configuration(
    broken: Path, changes: dict[str, object], message: str
) -> None:
    edit_config(broken, **changes)
    assert message in refusal(broken)


def test_missing_or_invalid_model_files_are_rejected(broken: Path) -> None:
    (broken / WEIGHTS).rename(broken / "weights")
    assert "does not contain a .safetensors file" in refusal(broken)
    (broken / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "b.safetensors"}})
    )
    assert "is missing" in refusal(broken)
    (broken / "config.json").write_text("{")
    assert "is not valid JSON" in refusal(broken)
    (broken / "config.json").unlink()
    assert "does not contain config.json" in refusal(broken)


def test_model_larger_than_the_memory_is_rejected(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for free_bytes, message in (
        (80 << 20, r"8 MiB.* 80 MiB are free. Use num_blocks=\d+\."),
        (100 << 10, "The weights require 0 MiB in float32, but only 0 MiB are free"),
    ):
        monkeypatch.setattr(
            DeviceManager, "free_bytes", lambda self, free_bytes=free_bytes: free_bytes
        )
        with pytest.raises(ModelLoadError, match=message):
            make_engine(folder, num_blocks=10_000)


def test_unavailable_device_falls_back_to_the_cpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("cuda:7", "cuda:x", "cpu:1", "tpu", "mps"):
        assert DeviceManager(name).device.type == "cpu"
        assert name in caplog.text
    with pytest.raises(ModelLoadError, match="float16 is not supported on CPUs"):
        DeviceManager("cpu", "float16")
    with pytest.raises(ModelLoadError, match="dtype int3"):
        DeviceManager("cpu", "int3")
    manager = DeviceManager("cpu", "bfloat16")
    assert manager.info()["dtype"] == "bfloat16" and manager.detect_device() in (
        "cpu",
        "cuda",
        "mps",
    )
