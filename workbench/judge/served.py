"""The requests in a journal: `read_journal`."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec import Struct

from app.shared.http_client import Target, whole_response
from config import ConfigError
from config.lines import check_json
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.runs.exports import check_not_empty
from workbench.runs.input_files import open_input, read_document
from workbench.runs.tool_requests import MAX_MOMENT_S

JOURNAL_PATH = "/admin/journal?ranks=all"
TIMEOUT_S = 60.0
EARLY_S = 0.001
"""A write may precede the planned moment of its token: alarms that are due soon ring together."""
PINGS = 20
"""Number of connections for the time of a round trip; the fastest counts."""


class ServedRequest(Struct, kw_only=True):
    """An entry of the journal; moments are Unix seconds of the server."""

    id: str
    route: str
    arrived_s: float
    response_id: str | None = None
    status: int | None = None
    text: str | None = None
    usage: dict[str, int] | None = None
    queued_s: float | None = None
    scheduled_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None
    sends_s: list[float] | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    ignored_fields: Sequence[str] = ()
    """Fields of the request that the played version of vLLM does not have."""

    @property
    def output_tokens(self) -> int:
        """Tokens of the reply; 0 if no choice ended."""
        if self.usage is None:
            return 0
        return self.usage.get("completion_tokens", 0)

    @property
    def first_sent_s(self) -> float | None:
        """When the first token was handed to the connection; None if nothing was sent."""
        return self._sent_after(self.first_s)

    @property
    def last_sent_s(self) -> float | None:
        """When the last token was handed to the connection; None if nothing was sent."""
        return self._sent_after(self.last_s)

    def _sent_after(self, moment_s: float | None) -> float | None:
        """Returns the write of a token that the engine had at `moment_s`."""
        if not self.sends_s:
            return None
        if moment_s is None:
            return self.sends_s[-1]
        for sent_s in self.sends_s:
            if sent_s >= moment_s - EARLY_S:
                return sent_s
        return self.sends_s[-1]


class _Rank(Struct):
    entries: list[ServedRequest]


def read_journal(source: str, admin_key: str | None = None) -> list[ServedRequest]:
    """Returns the entries in order of arrival, from a server's URL or a file of its answer.

    Raises:
        ConfigError: The journal cannot be read, is empty, or has no moments.
    """
    entries = journal_entries(source, admin_key)
    if not entries:
        raise ConfigError(f"{source}: the journal is empty; read the journal before you reset it")
    return entries


def journal_entries(source: str, admin_key: str | None = None) -> list[ServedRequest]:
    """Returns the entries like `read_journal`; none of a journal that is empty.

    Raises:
        ConfigError: The journal cannot be read, or has no moments.
    """
    if "://" in source:
        text = _fetch(source, admin_key)
    else:
        with open_input(Path(source)) as (_, file):
            check_not_empty(source, file)
            text = read_document(file, source)
    try:
        document = decode_untrusted(text)
    except UntrustedDataError as error:
        raise ConfigError(f"{source}: the journal is not valid JSON: {error}") from None
    ranks: Sequence[object] = [document]
    if isinstance(document, dict) and "entries" not in document:
        ranks = list(document.values())
    try:
        entries = [
            entry for rank in ranks for entry in msgspec.convert(rank, _Rank, strict=True).entries
        ]
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source} is not a journal with times: {error}") from None
    for entry in entries:
        for moment_s in (entry.arrived_s, *(entry.sends_s or ())):
            if not abs(moment_s) <= MAX_MOMENT_S:
                raise ConfigError(f"{source}: {moment_s:g} is not a valid time in seconds")
    return sorted(entries, key=_arrival)


def _arrival(entry: ServedRequest) -> float:
    return entry.arrived_s


def _fetch(url: str, admin_key: str | None) -> bytes:
    target = Target.from_url(url)
    headers = {}
    if admin_key is not None:
        headers["X-Admin-Key"] = admin_key
    path = target.prefix + JOURNAL_PATH
    try:
        with closing(target.connection(TIMEOUT_S)) as connection:
            response, content = whole_response(connection, "GET", path, body=None, headers=headers)
        check_json(content, target.url)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"the journal of {target.url} cannot be read: {reason}") from None
    if response.status != 200:
        reason = content.decode(errors="replace")[:200]
        raise ConfigError(
            f"{target.url} returned status {response.status} for the journal: {reason}"
        )
    return content


def round_trip_s(url: str) -> float:
    """Returns the time of opening a TCP connection to the server: one round trip.

    Raises:
        ConfigError: The server cannot be reached.
    """
    target = Target.from_url(url)
    fastest_s = TIMEOUT_S
    for _ in range(PINGS):
        connection = target.connection(TIMEOUT_S)
        start_s = time.perf_counter()
        try:
            connection.connect()
        except OSError as error:
            raise ConfigError(f"{target.url} cannot be reached: {error}") from None
        finally:
            connection.close()
        fastest_s = min(fastest_s, time.perf_counter() - start_s)
    return fastest_s
