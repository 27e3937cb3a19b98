"""Weights and configurations that cannot be used are one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from app.llm.decoder import packing_works
from app.llm.errors import ModelLoadError
from app.llm.model_files import find_model
from app.llm.model_runner import DeviceManager
from tests.llm.tiny import edit_config, generate, make_engine, make_model, prompts

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


def test_files_that_are_cut_off(broken: Path) -> None:
    content = (broken / WEIGHTS).read_bytes()
    for size in (0, 5, 200, len(content) - 1):
        (broken / WEIGHTS).write_bytes(content[:size])
        assert "cut off" in refusal(broken)


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (None, f"The weights lack the tensor {UP}."),
        (torch.zeros(96, 63), f"The tensor {UP} is [96, 63], the configuration says [96, 64]."),
    ],
    ids=["missing", "wrong shape"],
)
def test_a_tensor_that_is_wrong(broken: Path, tensor: torch.Tensor | None, said: str) -> None:
    tensors = load_file(broken / WEIGHTS) | {UP: tensor}
    save_file({name: each for name, each in tensors.items() if each is not None}, broken / WEIGHTS)
    assert refusal(broken) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "The architecture GPT2LMHeadModel is not supported"),
        ({"hidden_size": None}, "missing required field `hidden_size`"),
        ({"hidden_size": "large"}, "Expected `int`, got `str` - at `$.hidden_size`"),
        ({"num_attention_heads": 0}, "Expected `int` >= 1 - at `$.num_attention_heads`"),
        ({"num_key_value_heads": 3}, "do not share"),
        ({"hidden_act": "gelu"}, "The activation gelu"),
        ({"use_sliding_window": True}, "Sliding window"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "Rope of type yarn"),
    ],
    ids=str,
)
def test_configuration(broken: Path, changes: dict[str, object], said: str) -> None:
    edit_config(broken, **changes)
    assert said in refusal(broken)


def test_files_that_are_missing_or_no_json(broken: Path) -> None:
    (broken / WEIGHTS).rename(broken / "weights")
    assert "holds no .safetensors file" in refusal(broken)
    (broken / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "b.safetensors"}}))
    assert "is not there" in refusal(broken)
    (broken / "config.json").write_text("{")
    assert "not readable JSON" in refusal(broken)
    (broken / "config.json").unlink()
    assert "holds no config.json" in refusal(broken)


def test_gguf_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    for content in (b"", b"GGUF", b"GGUF" + bytes(200), b"no such file" * 50):
        file.write_bytes(content)
        assert refusal(file)


def test_models_that_are_nowhere(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nothing"), "no-such-model", "no-such/model", __file__):
        with pytest.raises(ModelLoadError):
            find_model(name)


@pytest.mark.parametrize(
    ("free_bytes", "said"),
    [
        (80 << 20, r"8 MiB.* 80 MiB are free: num_blocks=\d+ fits"),
        (100 << 10, "The weights take 0 MiB in float32, 0 MiB are free"),
    ],
    ids=["cache", "weights"],
)
def test_a_model_that_is_larger_than_the_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, said: str
) -> None:
    monkeypatch.setattr(DeviceManager, "free_bytes", lambda self: free_bytes)
    with pytest.raises(ModelLoadError, match=said):
        make_engine(folder, num_blocks=10_000)


def test_devices_that_are_not_there(caplog: pytest.LogCaptureFixture) -> None:
    for name in ("cuda:7", "cuda:x", "cpu:1", "tpu", "mps"):
        assert DeviceManager(name).device.type == "cpu"
        assert name in caplog.text
    with pytest.raises(ModelLoadError, match="float16 is not supported on a CPU"):
        DeviceManager("cpu", "float16")
    with pytest.raises(ModelLoadError, match="dtype int3"):
        DeviceManager("cpu", "int3")
    manager = DeviceManager("cpu", "bfloat16")
    assert manager.info()["dtype"] == "bfloat16" and manager.detect_device() in ("cpu", "cuda", "mps")
    moved = manager.optimize_for_device(torch.nn.Linear(2, 2))
    assert next(moved.parameters()).dtype == torch.bfloat16


def test_without_packed_layers_the_tokens_are_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = prompts(6)
    packed = generate(make_engine(folder), wanted)
    monkeypatch.setattr("app.llm.model_runner.packing_works", lambda dtype: False)
    engine = make_engine(folder)
    assert not engine.runner.device.packs
    assert generate(engine, wanted) == packed


def test_packing_is_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packing_works(torch.float32)
    monkeypatch.setattr("app.llm.decoder.Linear.fused", lambda self, x, other, operation: other * self.packed)
    assert not packing_works(torch.float32)
