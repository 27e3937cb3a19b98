"""The load client: sends a workload over connections that cooperate with other greenlets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from http.client import HTTPException
from itertools import repeat

import gevent
import gevent.socket
import gevent.ssl
import msgspec
from gevent.pool import Pool
from msgspec import Struct

from app.lab.load.workload import Workload
from app.serving.http.client import (
    COMPLETIONS,
    DATA,
    JSON,
    PATIENCE_S,
    ROUTED_TO,
    Connection,
    PromptDetails,
    StreamError,
    one_line,
    read_stream,
)

Now = Callable[[], float]


class Sample(Struct, frozen=True):
    """Result of one request. `ttft_s` is the time from sending to the first text; `error` may be empty."""

    pod: str
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    error: str = ""


class LoadClient:
    """Streams completions of `tokens` tokens each from the server at `address`."""

    def __init__(self, address: str, model: str, tokens: int, now: Now) -> None:
        self._address = address
        self._body = {"model": model, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        self._now = now

    def run(
        self,
        workload: Workload,
        concurrency: int | None,
        gaps_s: Iterable[float] | None,
        done: Callable[[], None],
    ) -> list[Sample]:
        """Sends every request in order, and returns the samples in the order of their ends.

        At most `concurrency` run at once (None: any number). Each starts at least a gap after the previous.
        """
        samples: list[Sample] = []

        def one(prompt: str) -> None:
            samples.append(self.sample(prompt))
            done()

        running = Pool(concurrency)
        due_s = self._now()
        try:
            # Due times are absolute, so that the time to spawn does not lower the rate.
            for request, gap_s in zip(workload.requests, gaps_s or repeat(0.0), strict=False):
                due_s += gap_s
                gevent.sleep(max(0.0, due_s - self._now()))
                running.spawn(one, request.prompt)
            running.join(raise_error=True)
        finally:
            running.kill()
        return samples

    def sample(self, prompt: str) -> Sample:
        """Sends one request and reads its response to the end. Failures are part of the sample."""
        body = {**self._body, "prompt": prompt, "stream_options": {"include_usage": True}}
        with closing(Connection(self._address, PATIENCE_S)) as connection:
            sent_s = self._now()
            pod = ""
            try:
                connection.request("POST", COMPLETIONS, msgspec.json.encode(body), JSON)
                response = connection.getresponse()
                pod = response.getheader(ROUTED_TO) or ""
                if response.status != 200:
                    return Sample(pod, 0.0, 0, 0, f"status {response.status}: {one_line(response.read())}")
                seen = read_stream((self._now(), line) for line in response if line.startswith(DATA))
            except StreamError as error:
                return Sample(pod, 0.0, 0, 0, str(error))
            except (OSError, HTTPException) as error:
                return Sample(pod, 0.0, 0, 0, repr(error))
        if seen.text_s is None:
            return Sample(pod, 0.0, 0, 0, "its stream has no text")
        details = seen.usage.prompt_tokens_details or PromptDetails()
        return Sample(pod, seen.text_s - sent_s, seen.usage.prompt_tokens, details.cached_tokens or 0)
