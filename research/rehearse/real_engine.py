"""The real engine (`app/extensions/llm`) as one that is played. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import torch
from msgspec.structs import replace

from app.core.engine.batch import Batch
from app.core.engine.profile import EngineLimits
from app.extensions.llm.config import Checkpoint, ModelConfig
from app.extensions.llm.device import DeviceManager
from app.extensions.llm.engine import LLMEngine
from app.extensions.llm.engine_options import EngineOptions
from app.extensions.llm.errors import LLMError
from app.extensions.llm.library import make_engine
from app.extensions.llm.model_runner import ModelRunner
from app.extensions.llm.sampling_params import SamplingParams
from research.rehearse.playing import Token

TINY = "tiny"


class RealEngine:
    """A model on a device. Prompts are random tokens, replies greedy ones, and none ends early."""

    def __init__(
        self, model: str, device: str, threads: int, limits: EngineLimits, seed: int
    ) -> None:
        """ModelLoadError, with one line, for whatever is wrong with the model."""
        self.limits = limits
        assert limits.max_model_len is not None
        options = {
            "num_blocks": limits.num_gpu_blocks,
            "block_size": limits.block_size,
            "max_seq_length": limits.max_model_len,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
            "enable_prefix_caching": limits.enable_prefix_caching,
            "step_time_s": 0.0,  # steps that depend on the clock are never the same twice
            "num_threads": threads,
        }
        if model == TINY:
            made = _tiny_engine(device, replace(EngineOptions(), **options))
        else:
            made = make_engine(model, device, None, **options)
        self._engine = made
        self._engine.watch = self._made
        self._seed = seed
        self._batch: Batch[Any] | None = None

    @property
    def told(self) -> str:
        """Device, numbers and threads, for people."""
        its = self._engine.runner.device.info()
        return f"{its['device']}, {its['dtype']}, threads: {its['num_threads']}"

    def add(self, number: int, input_tokens: int, output_tokens: int) -> None:
        ids = range(self._engine.runner.config.vocab_size)
        prompt = Random(f"{self._seed}/{number}").choices(ids, k=input_tokens)
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        self._engine.add_request(str(number), prompt, params)

    def step(self) -> tuple[Batch[Any], Sequence[Token]]:
        """LLMError when a request fails."""
        self._batch = None
        outputs, batch = self._engine.step(), self._batch
        if batch is None:
            raise LLMError("The engine has no room for what waits.")
        for output in outputs:
            if output.update.error is not None:
                raise LLMError(output.update.error)
        tokens = [
            Token(int(it.sequence.request_id), it.update.finish is not None) for it in outputs
        ]
        return batch, tokens

    def reset(self) -> None:
        self._engine.cache.reset()
        self._engine.cache.take_events()

    def _made(self, batch: Batch[Any]) -> None:
        self._batch = batch


def _tiny_engine(device: str, options: EngineOptions) -> LLMEngine:
    runner = ModelRunner(
        tiny_checkpoint(),
        DeviceManager(device, num_threads=options.num_threads),
        options.num_blocks,
        options.block_size,
        options.max_seq_length,
    )
    return LLMEngine(runner, None, options)


TINY_CONFIG: Final = ModelConfig(
    architecture="llama",
    vocab_size=512,
    hidden_size=64,
    intermediate_size=192,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-6,
    rope_theta=10_000.0,
    max_position=4096,
    tied=True,
)


def random_weights(config: ModelConfig, seed: int = 1) -> dict[str, Callable[[], torch.Tensor]]:
    """The tensors of a Llama with tied embeddings; the same ones each time."""

    def draw(place: int, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed + place)) * 0.2

    shapes = _shapes(config).items()
    return {name: partial(draw, place, shape) for place, (name, shape) in enumerate(shapes)}


def tiny_checkpoint() -> Checkpoint:
    return Checkpoint(TINY_CONFIG, random_weights(TINY_CONFIG))


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    attended = config.num_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (attended, hidden),
        "self_attn.k_proj": (config.kv_size, hidden),
        "self_attn.v_proj": (config.kv_size, hidden),
        "self_attn.o_proj": (hidden, attended),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {
        f"model.layers.{number}.{name}.weight": shape
        for number in range(config.num_layers)
        for name, shape in layer.items()
    }
    return shapes | {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
