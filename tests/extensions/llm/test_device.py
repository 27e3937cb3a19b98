"""Devices other than the CPU, as far as that can be tried without one.

torch's `meta` device has shapes and no numbers. A step that ran on it mixes no devices (but for
indices, that torch takes from the CPU), and reads nothing from the device but what is listed here:
the CPU waits for that.
"""

from pathlib import Path

import pytest
import torch

from app.extensions.llm.device import DeviceManager
from app.extensions.llm.engine import LLMEngine
from app.extensions.llm.engine_options import EngineOptions
from app.extensions.llm.loader import load_checkpoint
from app.extensions.llm.model_runner import ModelRunner
from app.extensions.llm.sampling_params import SamplingParams
from tests.extensions.llm.tiny import KINDS, VOCABULARY, Shape, make_model, prompts

pytestmark = pytest.mark.engine

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LIMITED = SamplingParams(top_k=20, top_p=0.9, min_p=0.01, seed=1, max_tokens=12, ignore_eos=True)
PENALISED = SamplingParams(
    repetition_penalty=1.2, presence_penalty=0.5, logit_bias={3: 1.0}, min_tokens=3, stop_token_ids=[5],
    max_tokens=12,
)  # fmt: skip


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The shapes that were read from the device; all numbers there are 0."""
    shapes: list[torch.Size] = []
    original = torch.Tensor.tolist

    def tolist(tensor: torch.Tensor) -> list[object]:
        if tensor.device.type == "meta":
            shapes.append(tensor.shape)
            tensor = torch.zeros_like(tensor, device="cpu")
        return original(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)

    def detect_device(device: str) -> str:
        return "meta"

    def free_bytes(manager: DeviceManager) -> None:
        """The memory of this device is not known."""

    monkeypatch.setattr(DeviceManager, "detect_device", staticmethod(detect_device))
    monkeypatch.setattr(DeviceManager, "free_bytes", free_bytes)
    return shapes


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, "bfloat16") for kind in KINDS), ("llama", "float16"), ("llama", "float32")],
)
def test_engine_step_copies_only_one_tensor_from_the_gpu(
    kind: str, dtype: str, tmp_path: Path, reads: list[torch.Size]
) -> None:
    make_model(tmp_path, Shape(kind))
    options = EngineOptions(num_blocks=64, max_seq_length=512, max_num_batched_tokens=64)
    runner = ModelRunner(
        load_checkpoint(tmp_path),
        DeviceManager("cuda", dtype),
        num_blocks=64,
        block_size=16,
        length=512,
    )
    engine = LLMEngine(runner, None, options)
    for number, prompt in enumerate(prompts(6)):
        engine.add_request(str(number), prompt, [GREEDY, LIMITED, PENALISED][number % 3])
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
        assert len(reads) <= steps
    assert runner.store.layers[0].dtype == getattr(torch, dtype)
    assert all(shape.numel() <= 6 for shape in reads)
    assert engine.stats.generated_tokens == 6 * 12


def test_logprobs_and_nucleus_sampling_copy_two_tensors_from_the_gpu(
    tmp_path: Path, reads: list[torch.Size]
) -> None:
    make_model(tmp_path, vocabulary=VOCABULARY * 2)  # so large a one is not sorted whole
    runner = ModelRunner(
        load_checkpoint(tmp_path),
        DeviceManager("cuda"),
        num_blocks=64,
        block_size=16,
        length=512,
    )
    for params, shapes in (
        (SamplingParams(temperature=0.0, max_tokens=1, logprobs=2), [(1,), (1, 6)]),
        (SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1), [(9, 4), (1,)]),
        (SamplingParams(top_p=0.5, max_tokens=1), [(1,), (1,)]),
    ):
        reads.clear()
        engine = LLMEngine(runner, None, EngineOptions(num_blocks=64, max_seq_length=512))
        engine.add_request("one", list(range(10)), params)
        engine.step()
        assert reads == shapes
