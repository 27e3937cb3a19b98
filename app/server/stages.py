"""Notes on a worker's way through life, in its heartbeat file, which arbiter and worker both have open.

A signal only says "end"; the notes say why, and the worker acts accordingly.
"""

from __future__ import annotations

import os
from typing import Any

SERVING, REPLACED, ENDING = range(3)
"""The worker accepts connections; a reload has started its successor; the whole server ends."""


def is_serving(worker: Any) -> bool:
    return _is_noted(worker, SERVING)


def is_replaced(worker: Any) -> bool:
    return _is_noted(worker, REPLACED)


def is_ending(worker: Any) -> bool:
    return _is_noted(worker, ENDING)


def note(worker: Any, stage: int) -> None:
    """Note one of the stages; the time of the last heartbeat stays as it is."""
    file = worker.tmp.fileno()
    heartbeat = os.fstat(file)
    os.pwrite(file, b"x", stage)
    os.utime(file, ns=(heartbeat.st_atime_ns, heartbeat.st_mtime_ns))


def _is_noted(worker: Any, stage: int) -> bool:
    return os.pread(worker.tmp.fileno(), 1, stage) == b"x"
