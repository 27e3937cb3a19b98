"""The engine for asyncio, owned by a thread, so that the event loop never waits for a step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from app.llm.errors import LLMError, RequestError
from app.llm.llm import (
    DEFAULT_MODEL,
    CollectedChoice,
    Prompt,
    Prompts,
    Result,
    encode_chat,
    info_of,
    make_engine,
    prompt_list,
    stats_of,
)
from app.llm.sampling_params import Priority, SamplingParams
from app.text.base import Message

if TYPE_CHECKING:
    from app.llm.engine import LLMEngine, Output

Params = SamplingParams | None
T = TypeVar("T")


class EngineThread:
    """Owns an engine, and runs calls from any thread one after another between its steps.

    Each step submits the next one as a call. Outputs go to the callback of their request in `deliver`.
    """

    def __init__(self, make: Callable[[], LLMEngine]) -> None:
        self.deliver: dict[Hashable, Callable[[Output | Exception], None]] = {}
        """Callbacks by request id; only for use within calls."""
        self._pool = ThreadPoolExecutor(1, "llm-engine")
        self._made = self._pool.submit(make)
        self._stepping = self._closed = False

    def call(self, do: Callable[[LLMEngine], T]) -> Future[T]:
        """Schedules `do` between two steps, and returns the future of its result.

        Raises LLMError when the engine has ended.
        """
        try:
            return self._pool.submit(self._do, do)
        except RuntimeError:
            raise LLMError("The engine has ended.") from None

    def abort(self, request_id: str) -> None:
        """Ends a request without another output."""

        def end(engine: LLMEngine) -> None:
            engine.abort(request_id)
            self.deliver.pop(request_id, None)

        with suppress(LLMError):  # the engine has ended, and the request with it
            self.call(end)

    def close(self) -> None:
        """Ends the engine and all requests; blocks until the current step is over."""
        self._closed = True
        self._pool.shutdown()
        self._fail(LLMError("The engine was shut down."))

    def _do(self, do: Callable[[LLMEngine], T]) -> T:
        engine = self._made.result()
        if self._closed:
            raise LLMError("The engine was shut down.")
        try:
            return do(engine)
        finally:
            if engine.has_work and not self._stepping:
                self._stepping = True
                self._next_step()

    def _next_step(self) -> None:
        with suppress(RuntimeError):  # the pool was shut down meanwhile
            self._pool.submit(self._step, self._made.result())

    def _step(self, engine: LLMEngine) -> None:
        try:
            for output in () if self._closed else engine.step():
                deliver = self.deliver.get(output.sequence.request_id)
                if deliver is not None:
                    deliver(output)
        except Exception as error:  # the engine's state is unknown from here on
            self._closed = True
            self._fail(error)
        self._stepping = engine.has_work and not self._closed
        if self._stepping:
            self._next_step()

    def _fail(self, error: Exception) -> None:
        waiting, self.deliver = self.deliver, {}
        for deliver in waiting.values():
            deliver(error)


class AsyncLLM:
    """`LLM` for asyncio: the same results and items, for concurrent requests.

    `model` (or `model_name`) is as for `LLM`, or a function that makes the engine in its thread. `options`
    have the names of `EngineOptions`. A request that cannot be served raises an LLMError.
    """

    def __init__(
        self,
        model: str | Callable[[], LLMEngine] = DEFAULT_MODEL,
        device: str = "auto",
        dtype: str | None = None,
        *,
        model_name: str | None = None,
        **options: float | str | None,
    ) -> None:
        chosen = model_name or model
        self.model = chosen if isinstance(chosen, str) else ""

        make = partial(make_engine, self.model, device, dtype, **options)
        self._thread = EngineThread(make if isinstance(chosen, str) else chosen)
        self._requests = count()
        self._submitted: dict[int, asyncio.Task[Result | list[Result]]] = {}
        self._since = time.monotonic()

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()

    async def generate(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        priority: int = Priority.NORMAL,
        max_wait_s: float | None = None,
    ) -> Result | list[Result]:
        """Returns the result of one prompt, or a list for several prompts or choices."""
        results = await self.generate_async(prompts, sampling_params, priority, max_wait_s)
        is_one = isinstance(prompts, str) or isinstance(next(iter(prompts), None), int)
        return results[0] if is_one and len(results) == 1 else results

    async def generate_async(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        priority: int = Priority.NORMAL,
        max_wait_s: float | None = None,
    ) -> list[Result]:
        """Returns a result for each prompt and choice, in order. The first failure aborts other prompts."""

        async def whole(prompt: Prompt) -> dict[int, CollectedChoice]:
            choices = self._choices(prompt, sampling_params, priority, max_wait_s)
            return {index: choice async for index, choice in choices}

        tasks = [asyncio.ensure_future(whole(prompt)) for prompt in prompt_list(prompts)]
        try:
            replies = await asyncio.gather(*tasks)
            return [reply[index].result() for reply in replies for index in sorted(reply)]
        finally:
            for task in tasks:
                task.cancel()

    async def generate_batch(
        self,
        prompts: Sequence[Prompt],
        sampling_params: Params = None,
        batch_size: int = 4,
        priority: int = Priority.NORMAL,
    ) -> list[Result]:
        """Calls `generate_async` with at most `batch_size` prompts at a time."""
        parts = [prompts[first : first + batch_size] for first in range(0, len(prompts), batch_size)]
        return [it for part in parts for it in await self.generate_async(part, sampling_params, priority)]

    async def generate_stream(
        self,
        prompt: Prompt,
        sampling_params: Params = None,
        priority: int = Priority.NORMAL,
        max_wait_s: float | None = None,
    ) -> AsyncGenerator[Result, None]:
        """Yields items of all choices as they come. Closing the generator early aborts the request."""
        async with aclosing(self._choices(prompt, sampling_params, priority, max_wait_s)) as choices:
            async for _, choice in choices:
                yield choice.item()

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        priority: int = Priority.NORMAL,
        system_prompt: str | None = None,
    ) -> Result | list[Result]:
        return await self.generate(await self._encode(messages, system_prompt), sampling_params, priority)

    async def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        priority: int = Priority.NORMAL,
        system_prompt: str | None = None,
    ) -> AsyncGenerator[Result, None]:
        prompt = await self._encode(messages, system_prompt)
        async with aclosing(self.generate_stream(prompt, sampling_params, priority)) as items:
            async for item in items:
                yield item

    async def submit_request(
        self, prompt: Prompt, sampling_params: Params = None, priority: int = Priority.NORMAL
    ) -> int:
        """Begins a request, and returns its number for `get_result`."""
        number = next(self._requests)
        self._submitted[number] = asyncio.ensure_future(self.generate(prompt, sampling_params, priority))
        return number

    async def get_result(self, request_id: int) -> Result | list[Result]:
        """Waits for the result of a submitted request, and returns it, only once."""
        if request_id not in self._submitted:
            raise RequestError(f"No result is kept for a request {request_id}.")
        return await self._submitted.pop(request_id)

    async def get_stats(self) -> Result:
        return await self._call(lambda engine: stats_of(engine, time.monotonic() - self._since))

    async def clear_stats(self) -> None:
        await self._call(lambda engine: engine.clear_stats())
        self._since = time.monotonic()

    def get_model_info(self) -> Result:
        """Returns facts of the model. Blocks until the model is loaded and the current step is over."""
        return self._thread.call(lambda engine: info_of(engine, self.model)).result()

    async def shutdown(self) -> None:
        """Ends all streams with an error, and the engine's thread."""
        while self._submitted:
            self._submitted.popitem()[1].cancel()
        await asyncio.to_thread(self._thread.close)

    async def _call(self, do: Callable[[LLMEngine], T]) -> T:
        return await asyncio.wrap_future(self._thread.call(do))

    async def _encode(self, messages: Sequence[Message], system_prompt: str | None) -> list[int]:
        return await self._call(lambda engine: encode_chat(engine, messages, system_prompt))

    async def _choices(
        self, prompt: Prompt, params: Params, priority: int, max_wait_s: float | None
    ) -> AsyncGenerator[tuple[int, CollectedChoice], None]:
        loop, queue = asyncio.get_running_loop(), asyncio.Queue["Output | Exception"]()
        request_id = str(next(self._requests))
        choices = [CollectedChoice(request_id, prompt) for _ in range(1 if params is None else params.n)]

        def deliver(item: Output | Exception) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def add(engine: LLMEngine) -> None:
            engine.add_request(request_id, prompt, params, priority, max_wait_s)
            self._thread.deliver[request_id] = deliver

        try:
            await self._call(add)
            while any(choice.finish_reason is None for choice in choices):
                output = await queue.get()
                if isinstance(output, Exception):
                    raise output
                if output.said.error is not None:
                    raise LLMError(output.said.error)
                index = output.sequence.index
                choices[index].add(output)
                yield index, choices[index]
        finally:
            self._thread.abort(request_id)
