"""The real engine (`app/llm`) as one that is played. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from app.engine.batch import Batch
from app.llm.device_manager import DeviceManager
from app.llm.engine import EngineOptions, LLMEngine
from app.llm.errors import LLMError
from app.llm.llm import make_engine
from app.llm.model_runner import ModelRunner
from app.llm.random_weights import tiny_checkpoint
from app.llm.sampling_params import SamplingParams
from benchmarks.rehearse.playing import Token
from config.profile import EngineLimits

TINY = "tiny"


class RealEngine:
    """A model on a device. Prompts are random tokens, replies greedy ones, and none ends early."""

    def __init__(self, model: str, device: str, threads: int, limits: EngineLimits, seed: int) -> None:
        """ModelLoadError, with one line, for whatever is wrong with the model."""
        torch.set_num_threads(threads)
        self.limits = limits
        assert limits.max_model_len is not None
        options = EngineOptions(
            num_blocks=limits.num_gpu_blocks,
            block_size=limits.block_size,
            max_seq_length=limits.max_model_len,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            enable_prefix_caching=limits.enable_prefix_caching,
        )
        made = _tiny_engine(device, options) if model == TINY else make_engine(model, device, None, options)
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
        ids = range(self._engine.runner.vocab_size)
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
            if output.error is not None:
                raise LLMError(output.error)
        tokens = [Token(int(it.request_id), it.finish_reason is not None) for it in outputs]
        return batch, tokens

    def reset(self) -> None:
        self._engine.reset_prefix_cache()
        self._engine.take_events()

    def _made(self, batch: Batch[Any]) -> None:
        self._batch = batch


def _tiny_engine(device: str, options: EngineOptions) -> LLMEngine:
    runner = ModelRunner(
        tiny_checkpoint(),
        DeviceManager(device),
        options.num_blocks,
        options.block_size,
        options.max_seq_length,
    )
    return LLMEngine(runner, None, options)
