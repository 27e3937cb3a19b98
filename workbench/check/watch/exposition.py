"""Reads texts in Prometheus' format, of a server or a file. Start reading at `samples_of`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from app.shared.http_client import Target, whole_response
from config.declaration import ConfigError

TIMEOUT_S = 10.0
MAX_BYTES = 8 << 20
"""Size of the metrics."""
MAX_LINE_BYTES = 1 << 16
MAX_SAMPLES = 100_000


def metrics_target(url: str) -> Target:
    """Returns the server of a base URL, or of the URL of its metrics.

    Raises:
        ConfigError: The URL is not valid.
    """
    return Target.from_url(url.removesuffix("/").removesuffix("/metrics"))


def fetch_metrics(target: Target, timeout_s: float = TIMEOUT_S, path: str = "/metrics") -> bytes:
    """Returns the metrics of a server, or the answer of another path.

    Raises:
        ConfigError: The server cannot be read, or its status is not 200.
    """
    address = f"{target.url}{path}"
    try:
        with closing(target.connection(timeout_s)) as connection:
            response, content = whole_response(
                connection,
                "GET",
                f"{target.prefix}{path}",
                body=None,
                headers=target.with_key({}),
                max_bytes=MAX_BYTES,
            )
    except OSError as error:
        raise ConfigError(f"{address} cannot be read: {error.strerror or error}") from None
    if response.status != 200:
        raise ConfigError(f"{address} returned status {response.status}")
    return content


def samples_of(address: str, content: bytes) -> Iterator[Sample]:
    """Yields the samples of a text in Prometheus' format.

    Raises:
        ConfigError: The content is not in this format, or has too many samples.
    """
    count = 0
    # The parser takes minutes for a line of megabytes.
    if b"\0" in content or max(map(len, content.split(b"\n"))) > MAX_LINE_BYTES:
        raise ConfigError(f"{address} is not in the text format of Prometheus")
    try:
        for family in text_string_to_metric_families(content.decode()):
            count += len(family.samples)
            if count > MAX_SAMPLES:
                break
            yield from family.samples
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(f"{address} is not in the text format of Prometheus") from None
    if count > MAX_SAMPLES:
        raise ConfigError(f"{address} has more than {MAX_SAMPLES} samples")
