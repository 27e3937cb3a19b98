"""The line about several workers of a gunicorn that does not use our configuration."""

from __future__ import annotations

import os
import sys

from gunicorn.arbiter import Arbiter
from gunicorn.workers.base import Worker

from app.core.server.gunicorn import ranks

FIX = (
    "For one server, as with -w 4, write this line first in the configuration file: "
    "from vllm_understudy.gunicorn_conf import *"
)


def warn_of_workers() -> None:
    """Logs one line, by the first worker, while gunicorn imports the application."""
    if ranks.SETTINGS in os.environ:  # our arbiter, which has one worker for each rank
        return
    owner = _importing_process()
    if owner is None or owner.cfg.workers <= 1:
        return
    if isinstance(owner, Worker) and owner.age != 1:
        return
    if type(owner).__module__.startswith("app."):  # our worker, which logs such a line itself
        return
    count = owner.cfg.workers
    owner.log.warning(
        "workers=%d: %s: %s. %s", count, ranks.ALL_SERVE, ranks.ONE_WORKER_PER_RANK, FIX
    )


def _importing_process() -> Arbiter | Worker | None:
    """Returns the worker that imports the application, or the arbiter that preloads it.

    gunicorn gives the application no access to them, so they are looked up among the callers.
    """
    frame = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Arbiter | Worker):
            return owner
        frame = frame.f_back  # type: ignore[assignment]
    return None
