"""Sends the cases of a configuration to a server, in order, and returns its answers."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, IncompleteRead
from string import Template

from app.extensions.recording.comparison import ReceivedAnswer
from fidelity.oracle.cases import Case

NO_ANSWER = 999
"""Status of a case without an answer."""
METRICS_TIMEOUT_S = 20.0
PLACE = "HOST"
"""Stands for the address of the server in headers."""
MISSING = "not-kept"
"""Value of a field that an answer did not have."""
IDLE_LIMIT_S = 5.0
"""Longest wait for requests to end before counters are read."""
IDLE_PAUSE_S = 0.3
"""Time after which vLLM's counters have the last request."""
BUSY_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
_SAMPLE = re.compile(r"(?m)^([a-zA-Z_:]+)(\{.*\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_UNCOUNTED_LABELS = ("model_name", "engine")

Counts = Mapping[str, float]
"""Growth of counters, by name and labels."""


class Client:
    """Sends cases to one server, and remembers the values that they keep for later cases."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._address = f"127.0.0.1:{port}"
        self._kept: dict[str, str] = {}

    def send(self, case: Case) -> tuple[ReceivedAnswer, Counts]:
        """Sends a case; returns the answer and the growth of its counters."""
        if not case.counters:
            return self._answer(case), {}
        counters_before = self._idle_counters(case.counters)
        answer = self._answer(case)
        after = self._idle_counters(case.counters)
        counts: dict[str, float] = {}
        for name, value in after.items():
            growth = round(value - counters_before.get(name, 0.0), 6)
            if growth:
                counts[name] = growth
        return answer, counts

    def _answer(self, case: Case) -> ReceivedAnswer:
        headers = {name: self._filled(value) for name, value in case.headers.items()}
        path = self._filled(case.path)
        body = self._body(case)
        answer = self._exchange(case.method, path, body, headers, case.timeout_s)
        for name, field in case.keep.items():
            self._kept[name] = _field_of(answer.body, field)
        return answer

    def _body(self, case: Case) -> bytes | None:
        if case.body is None or isinstance(case.body, bytes):
            return case.body
        text = case.body if isinstance(case.body, str) else json.dumps(case.body)
        return self._filled(text).encode("utf-8", "surrogatepass")

    def _filled(self, text: str) -> str:
        return Template(text).safe_substitute(self._kept) if self._kept else text

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> ReceivedAnswer:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)) as connection:
            try:
                connection.request(method, path, body, dict(headers))
                response = connection.getresponse()
            except (OSError, HTTPException) as error:
                return ReceivedAnswer(NO_ANSWER, [], repr(error).encode())
            try:
                content = response.read()
            except IncompleteRead as error:
                content = error.partial
            except OSError as error:
                return ReceivedAnswer(NO_ANSWER, [], repr(error).encode())
            answer_headers = [
                (name, value.replace(self._address, PLACE)) for name, value in response.getheaders()
            ]
            return ReceivedAnswer(response.status, answer_headers, content)

    def _idle_counters(self, names: Sequence[str]) -> Counts:
        """Returns counters once the server has no requests."""
        deadline = time.monotonic() + IDLE_LIMIT_S
        while time.monotonic() < deadline:
            samples = dict(samples_of(self._metrics(), BUSY_GAUGES))
            if not any(samples.values()):
                break
            time.sleep(IDLE_PAUSE_S)
        time.sleep(IDLE_PAUSE_S)
        return dict(samples_of(self._metrics(), names))

    def _metrics(self) -> str:
        answer = self._exchange("GET", "/metrics", None, {}, METRICS_TIMEOUT_S)
        return answer.body.decode(errors="replace")


def samples_of(exposition: str, names: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yields samples of these metrics; labels for model and engine are left out."""
    for name, labels, value in _SAMPLE.findall(exposition):
        if name in names:
            pairs = [
                f"{label}={text}"
                for label, text in _LABEL.findall(labels)
                if label not in _UNCOUNTED_LABELS
            ]
            yield f"{name}({', '.join(sorted(pairs))})", float(value)


def _field_of(body: bytes, field: str) -> str:
    try:
        return str(json.loads(body)[field])
    except (ValueError, KeyError, TypeError):
        return MISSING
