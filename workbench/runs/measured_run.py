"""Recorded runs of a server, and the checks of their requests."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from app.shared.statistics import latency_figures
from config import ConfigError
from workbench.load.loads import MAX_TOKENS, LoadTrace


class MeasuredRun(Struct):
    """A run as seen by its client: requests in order of arrival, times in seconds."""

    name: str
    arrival_s: list[float]
    """Times planned by the load."""
    send_s: list[float]
    first_s: list[float]
    last_s: list[float]
    input_tokens: list[int]
    output_tokens: list[int]
    in_flight: int | None = None
    """Most requests that the client had in flight; None if unlimited or not in the file."""
    notes: Sequence[str] = ()
    failed: int = 0
    """Requests that failed, and are left out."""

    @property
    def load(self) -> LoadTrace:
        """The load of the run."""
        return LoadTrace(
            self.name,
            arrival_s=array("d", self.arrival_s),
            input_tokens=array("i", self.input_tokens),
            output_tokens=array("i", self.output_tokens),
            left_out=self.failed,
        )

    def figures(self) -> list[float]:
        """Returns the twelve figures of the latencies, in seconds."""
        return latency_figures(self.send_s, self.first_s, self.last_s, self.output_tokens)


class MeasuredRequest(Struct):
    """A request of a file; times in seconds."""

    arrival_s: float
    send_s: float
    first_s: float
    last_s: float
    input_tokens: int
    output_tokens: int

    def check(self, location: str) -> None:
        """Raises ConfigError, which begins with `location`, if the values are impossible."""
        times_s = (self.arrival_s, self.send_s, self.first_s, self.last_s)
        sent = f"sent at {self.send_s:g} s"
        if not all(map(math.isfinite, times_s)):
            raise ConfigError(f"{location}: times must be finite numbers")
        if min(times_s) < 0:
            raise ConfigError(f"{location}: times must not be negative")
        if not (1 <= self.input_tokens <= MAX_TOKENS and 1 <= self.output_tokens <= MAX_TOKENS):
            raise ConfigError(
                f"{location}: input_tokens and output_tokens must be between 1 and {MAX_TOKENS},"
                f" not {self.input_tokens} and {self.output_tokens}"
            )
        if self.arrival_s > self.send_s + 1e-6:
            raise ConfigError(f"{location}: {sent}, before its arrival at {self.arrival_s:g} s")
        if not self.send_s < self.first_s <= self.last_s + 1e-9:
            raise ConfigError(
                f"{location}: {sent}, first token at {self.first_s:g} s, last token at"
                f" {self.last_s:g} s; these times must be in ascending order"
            )


def read_request(location: str, columns: Mapping[str, object]) -> MeasuredRequest:
    """Makes a request of its columns. One of `arrival_s` and `send_s` stands for both.

    Raises:
        ConfigError: A value is missing, or impossible; the message begins with `location`.
    """
    time_s = columns.get("arrival_s", columns.get("send_s"))
    fields = {"send_s": time_s, "arrival_s": time_s, **columns}
    try:
        request = msgspec.convert(fields, MeasuredRequest, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{location}: {error}") from None
    request.check(location)
    return request


def make_run(
    path: str,
    part: str,
    requests: Iterable[MeasuredRequest],
    *,
    in_flight: int | None = None,
    notes: Sequence[str] = (),
    failed: int = 0,
) -> MeasuredRun:
    """Makes a run, sorted by arrival; the first request arrives at 0.

    `part` names the run within its file; it is empty for the only run.

    Raises:
        ConfigError: The run has no requests, or no request has a TPOT.
    """
    rows = sorted(requests, key=lambda request: request.arrival_s)
    if not rows:
        raise ConfigError(f"{location_of(path, part)} contains no requests")
    if all(row.output_tokens == 1 for row in rows):
        raise ConfigError(
            f"{location_of(path, part)}: no request has more than one output token, so there"
            " are no ITLs"
        )
    start_s = rows[0].arrival_s
    name = Path(path).name.partition(".")[0]
    return MeasuredRun(
        name=f"{name} {part}" if part else name,
        arrival_s=[row.arrival_s - start_s for row in rows],
        send_s=[row.send_s - start_s for row in rows],
        first_s=[row.first_s - start_s for row in rows],
        last_s=[row.last_s - start_s for row in rows],
        input_tokens=[row.input_tokens for row in rows],
        output_tokens=[row.output_tokens for row in rows],
        in_flight=in_flight,
        notes=notes,
        failed=failed,
    )


def location_of(path: str, part: str) -> str:
    """Returns the beginning of an error message about a part of a file."""
    return f"{path}: {part}" if part else path
