"""`AsyncLLM`: the library for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Self

from app.core.text.base import Message
from app.extensions.llm.errors import RequestError
from app.extensions.llm.library import (
    Choice,
    Delivery,
    Library,
    Params,
    ParamsList,
    Prompt,
    Prompts,
    Request,
    Result,
    pair_params,
)
from app.extensions.llm.sampling_params import Priority


class AsyncLLM(Library):
    """`LLM` for asyncio: the same results and items, for concurrent requests.

    The event loop stays free. A request that cannot be served raises an LLMError.
    """

    waits = False

    @cached_property
    def _submitted(self) -> dict[int, asyncio.Task[Result | list[Result]]]:
        """The results of `submit_request` that `get_result` has not returned, by number."""
        return {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()

    async def generate(
        self, prompts: Prompts, sampling_params: ParamsList = None, priority: int = Priority.NORMAL
    ) -> Result | list[Result]:
        """Returns the result of one prompt, or a list for several prompts or choices."""
        results = await self.generate_async(prompts, sampling_params, priority)
        is_single = isinstance(prompts, str) or isinstance(next(iter(prompts), None), int)
        if is_single and len(results) == 1:
            return results[0]
        return results

    async def generate_async(
        self, prompts: Prompts, sampling_params: ParamsList = None, priority: int = Priority.NORMAL
    ) -> list[Result]:
        """Returns a result for each prompt and choice, in order.

        The first failure aborts the other prompts.
        """
        tasks = []
        for prompt, params in pair_params(prompts, sampling_params):
            tasks.append(asyncio.ensure_future(self._results(prompt, params, priority)))
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
        pairs = pair_params(prompts, sampling_params)
        results: list[Result] = []
        for first in range(0, len(pairs), batch_size):
            batch = pairs[first : first + batch_size]
            batch_prompts = [prompt for prompt, _ in batch]
            batch_params = [params for _, params in batch]
            results += await self.generate_async(batch_prompts, batch_params, priority)
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
        """Returns the result for a conversation, or a list for several choices."""
        prompt = await asyncio.wrap_future(self._call(self.encode_chat, messages, system_prompt))
        return await self.generate(prompt, sampling_params, priority)

    async def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        priority: int = Priority.NORMAL,
        system_prompt: str | None = None,
    ) -> AsyncGenerator[Result, None]:
        """Yields items of the reply to a conversation, as `generate_stream`."""
        prompt = await asyncio.wrap_future(self._call(self.encode_chat, messages, system_prompt))
        async with aclosing(self.generate_stream(prompt, sampling_params, priority)) as items:
            async for item in items:
                yield item

    async def submit_request(
        self, prompt: Prompt, sampling_params: Params = None, priority: int = Priority.NORMAL
    ) -> int:
        """Starts a request, and returns its number for `get_result`."""
        number = next(self._numbers)
        self._submitted[number] = asyncio.ensure_future(
            self.generate(prompt, sampling_params, priority)
        )
        return number

    async def get_result(self, request_id: int) -> Result | list[Result]:
        """Waits for the result of a submitted request, and returns it once.

        Raises:
            RequestError: There is no such request, or its result was returned before.
        """
        if request_id not in self._submitted:
            raise RequestError(f"Request {request_id} has no result.")
        return await self._submitted.pop(request_id)

    async def get_stats(self) -> Result:
        """Returns statistics of requests, memory, model and scheduler."""
        return await asyncio.wrap_future(self._call(self._stats))

    async def clear_stats(self) -> None:
        """Sets all counters to 0."""
        await asyncio.wrap_future(self._call(self._clear_stats))

    async def shutdown(self) -> None:
        """Ends all streams with an error, and the engine's thread."""
        while self._submitted:
            _, task = self._submitted.popitem()
            task.cancel()
        await asyncio.to_thread(self._close)

    async def _results(self, prompt: Prompt, params: Params, priority: int) -> list[Result]:
        choices = {}
        async for choice in self._choices(prompt, params, priority):
            choices[choice.index] = choice
        return [choices[index].result() for index in sorted(choices)]

    async def _choices(
        self, prompt: Prompt, params: Params, priority: int
    ) -> AsyncGenerator[Choice, None]:
        """Yields a choice whenever it has another output."""
        loop = asyncio.get_running_loop()
        queue = asyncio.Queue[Delivery]()

        def deliver(delivery: Delivery) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, delivery)

        request = Request(prompt, params, priority, deliver)
        self._call(self._add, [request])
        try:
            while not request.is_over:
                choice = request.add(await queue.get())
                choice.check()
                yield choice
        finally:
            self._abort(request)
