"""The client: sends the workload's requests and measures what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from itertools import repeat
from typing import Any

import gevent
import msgspec
from gevent.pool import Pool

from app.fleet.indexer import COMPLETIONS
from app.fleet.proxy import ROUTED_TO
from app.load.connection import JSON, Connection
from app.load.workload import Workload

PATIENCE_S = 120.0
"""How long an answer may pause before the request counts as failed."""
DATA = b"data: "
DONE = b"[DONE]"

Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Sample:
    """What became of one request. `ttft_s`: from sending to the first token; `error`: empty if none."""

    pod: str
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    error: str = ""


class Client:
    """Streams completions of `tokens` tokens from the server at `address`."""

    def __init__(self, address: str, model: str, tokens: int, now: Now) -> None:
        self._address = address
        self._body = {"model": model, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        self._now = now

    def play(
        self,
        workload: Workload,
        concurrency: int | None,
        gaps_s: Iterable[float] | None,
        done: Callable[[Sample], None],
    ) -> list[Sample]:
        """Send every request, in order; the samples in the order in which they ended.

        At most `concurrency` run at once (None: any number), each at least a gap after the one before.
        """
        samples: list[Sample] = []

        def one(prompt: str) -> None:
            samples.append(self.sample(prompt))
            done(samples[-1])

        running = Pool(concurrency)
        due_s = self._now()
        try:
            # Due times are absolute: what a spawn takes does not make the rate lower.
            for ask, gap_s in zip(workload.asks, gaps_s or repeat(0.0), strict=False):
                due_s += gap_s
                gevent.sleep(max(0.0, due_s - self._now()))
                running.spawn(one, ask.prompt)
            running.join(raise_error=True)
        finally:
            running.kill()
        return samples

    def sample(self, prompt: str) -> Sample:
        """Send one request and read its answer to the end. Whatever goes wrong is told in the sample."""
        body = {**self._body, "prompt": prompt, "stream_options": {"include_usage": True}}
        with closing(Connection(self._address, PATIENCE_S)) as connection:
            sent_s = self._now()
            pod = ""
            try:
                connection.request("POST", COMPLETIONS, msgspec.json.encode(body), JSON)
                response = connection.getresponse()
                pod = response.getheader(ROUTED_TO) or ""
                if response.status != 200:
                    return Sample(pod, 0.0, 0, 0, f"status {response.status}: {_first_line(response.read())}")
                return self._read(response, pod, sent_s)
            except (OSError, HTTPException, msgspec.MsgspecError) as error:
                return Sample(pod, 0.0, 0, 0, repr(error))

    def _read(self, response: HTTPResponse, pod: str, sent_s: float) -> Sample:
        ttft_s: float | None = None
        usage: dict[str, Any] | None = None
        for chunk in _chunks(response):
            if "error" in chunk:
                return Sample(pod, 0.0, 0, 0, f"the stream has an error: {chunk['error']}")
            if ttft_s is None and any(choice.get("text") for choice in chunk.get("choices", ())):
                ttft_s = self._now() - sent_s
            usage = chunk.get("usage") or usage
        if ttft_s is None or usage is None:
            return Sample(pod, 0.0, 0, 0, "the stream ended without a token or without its usage")
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return Sample(pod, ttft_s, usage["prompt_tokens"], cached)


def _chunks(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream. HTTPException when it ends before it says so."""
    for line in response:
        if line.startswith(DATA):
            if line.removeprefix(DATA).strip() == DONE:
                return
            yield msgspec.json.decode(line.removeprefix(DATA))
    raise HTTPException("the stream broke off")


def _first_line(body: bytes) -> str:
    return body.decode(errors="replace").partition("\n")[0][:200]
