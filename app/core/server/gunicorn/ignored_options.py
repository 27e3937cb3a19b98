"""Warnings about gunicorn's options that have no effect here, and about other worker classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.core.server.gunicorn.worker import Worker

if TYPE_CHECKING:
    from gunicorn.config import Config

LOST_FEATURES = (
    "the fast path, gRPC, client-timeout and a certificate that is read again; "
    "leave worker_class out to get them (docs/servers.md)"
)
"""Features that only our worker has."""


def option_warnings(cfg: Config) -> Iterator[str]:
    """Yields a line for each option that does not do what a user of gunicorn expects."""
    if not issubclass(cfg.worker_class, Worker):
        yield f"worker_class={cfg.worker_class_str}: without {LOST_FEATURES}"
        return
    if cfg.threads > 1:
        yield f"threads={cfg.threads}: no effect: one event loop serves all requests of a worker"
    if cfg.max_requests:
        jitter = ""
        if cfg.max_requests_jitter:
            jitter = f", max_requests_jitter={cfg.max_requests_jitter}"
        yield (
            f"max_requests={cfg.max_requests}{jitter}: no effect: "
            "a worker serves until the server ends or reloads"
        )
