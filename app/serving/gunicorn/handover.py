"""Handover from arbiter to workers: the settings in force, and notes on each worker's stage.

Only the arbiter reads the sources (environment, YAML file), at the start and at a reload. A restarted worker
therefore gets its siblings' settings, even after the YAML file has changed.

The notes are in a worker's heartbeat file, which the arbiter and the worker both have open. A signal only
ends a worker; the notes give the reason, which decides how the worker ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from typing import Any

from config import Settings
from config.plugins import from_plain, to_plain

SETTINGS = "UNDERSTUDY_SETTINGS"
ENDPOINT = "UNDERSTUDY_ENGINE"
"""Environment variable with the address of a real engine."""


def hand_over(settings: Settings, environ: MutableMapping[str, str]) -> None:
    """Writes the settings that differ from their defaults to `environ`, as JSON."""
    environ[SETTINGS] = json.dumps(to_plain(settings))


def handed_over(environ: Mapping[str, str]) -> Settings | None:
    """Returns the settings that `hand_over` wrote; None without any. ConfigError as `from_plain`."""
    text = environ.get(SETTINGS)
    return None if text is None else from_plain(json.loads(text))


SERVING, REPLACED, ENDING = range(3)
"""The worker accepts connections; a reload has started its successor; the whole server ends."""


def is_serving(worker: Any) -> bool:
    return _is_noted(worker, SERVING)


def is_replaced(worker: Any) -> bool:
    return _is_noted(worker, REPLACED)


def is_ending(worker: Any) -> bool:
    return _is_noted(worker, ENDING)


def note(worker: Any, stage: int) -> None:
    """Notes a stage; keeps the time of the last heartbeat."""
    file = worker.tmp.fileno()
    heartbeat = os.fstat(file)
    os.pwrite(file, b"x", stage)
    os.utime(file, ns=(heartbeat.st_atime_ns, heartbeat.st_mtime_ns))


def _is_noted(worker: Any, stage: int) -> bool:
    return os.pread(worker.tmp.fileno(), 1, stage) == b"x"
