"""The load of a drill: requests at equal intervals, and the outcome of each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import gevent
import msgspec
from gevent.pool import Group
from msgspec import Struct
from urllib3 import BaseHTTPResponse

from app.core.server.http.event_stream import events_of
from app.shared.http_client import COMPLETIONS, JSON, Target, pieces_of
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.drills.gate import ID_PREFIX
from workbench.runs.recording_client import StreamedUsage, StreamEvent, completion


class Outcome(Struct, kw_only=True):
    """Outcome of a request for the client. Times are seconds since the start of the load."""

    number: int
    due_s: float
    sent_s: float = 0.0
    first_s: float | None = None
    """Time of the first token."""
    end_s: float = 0.0
    """Time of the whole answer, or of the failure."""
    error: str = ""
    """Why there is no whole answer; empty for an answered request."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reusable_tokens: int = 0
    """Prompt tokens that an earlier prompt of the drill begins with, in full blocks."""
    pods: tuple[int, ...] = ()
    """Pods that the request has reached, in order; several after retries of the router."""

    @property
    def latency_s(self) -> float:
        """Seconds from sending to the end."""
        return self.end_s - self.sent_s


def request_id(number: int) -> str:
    """Returns the id of a request, which gates find in its bytes."""
    return f"{ID_PREFIX}{number:06d}"


class DrillClient:
    """Sends requests to a router, and reads the streams."""

    def __init__(
        self,
        target: Target,
        *,
        model: str,
        reply_tokens: int,
        timeout_s: float,
        now: Callable[[], float],
        sleep_until: Callable[[float], None],
    ) -> None:
        """`now` returns the seconds since the start; `sleep_until` waits for such a time."""
        self._target = target
        self._model = model
        self._reply_tokens = reply_tokens
        self._timeout_s = timeout_s
        self._now = now
        self._sleep_until = sleep_until

    def run(
        self, prompts: Sequence[str], interval_s: float, on_send: Callable[[int], None]
    ) -> list[Outcome]:
        """Sends the prompts, and returns their outcomes in the same order.

        `on_send` receives the number of requests sent so far.
        """
        requests = Group()
        outcomes = []
        try:
            for number, prompt in enumerate(prompts):
                outcome = Outcome(number=number, due_s=number * interval_s)
                outcomes.append(outcome)
                self._sleep_until(outcome.due_s)
                requests.spawn(self.send, outcome, prompt)
                on_send(number + 1)
            requests.join()
        finally:
            requests.kill()
        return outcomes

    def send(self, outcome: Outcome, prompt: str) -> None:
        """Sends one request, and completes its outcome."""
        outcome.sent_s = self._now()
        try:
            with gevent.Timeout(self._timeout_s, TimeoutError):
                outcome.error = self._exchange(outcome, prompt)
        except TimeoutError:
            outcome.error = "timeout"
        except (OSError, UntrustedDataError):
            # One reason for all: whether the end or a reset arrives first is chance.
            outcome.error = "broken answer"
        outcome.end_s = self._now()

    def _exchange(self, outcome: Outcome, prompt: str) -> str:
        """Returns why the answer is not whole; an empty text for a whole answer."""
        name = request_id(outcome.number)
        body = completion(self._model, prompt, self._reply_tokens, user=name)
        headers = self._target.with_key({**JSON, "x-request-id": name})
        with closing(self._target.connection(self._timeout_s)) as connection:
            connection.request("POST", self._target.prefix + COMPLETIONS, body, headers)
            response = connection.getresponse()
            if response.status != 200:
                return f"status {response.status}"
            return self._read_stream(outcome, response)

    def _read_stream(self, outcome: Outcome, response: BaseHTTPResponse) -> str:
        usage: StreamedUsage | None = None
        is_done = False
        for first_s, server_event in events_of(self._pieces(response)):
            if server_event.is_done:
                is_done = True
                break
            event = decode_untrusted(server_event.data, type=StreamEvent)
            if event.error is not msgspec.UNSET:
                return "broken answer"
            if event.choices and outcome.first_s is None:
                outcome.first_s = first_s
            usage = event.usage or usage
        if not is_done or usage is None or usage.completion_tokens != self._reply_tokens:
            return "broken answer"
        outcome.prompt_tokens = usage.prompt_tokens
        outcome.cached_tokens = usage.cached_tokens
        return ""

    def _pieces(self, response: BaseHTTPResponse) -> Iterator[tuple[float, bytes]]:
        """Yields the bytes of a response when they arrive, with the seconds since the start."""
        for piece in pieces_of(response, self._timeout_s):
            yield self._now(), piece
