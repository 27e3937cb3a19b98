"""What the arbiter hands over to its workers: the settings in force, and notes on where each worker stands.

The arbiter reads the sources (environment, YAML file) at the start and at a reload, and nobody else does. So
a worker that is started again gets what its siblings have, whatever has become of the YAML file since.

The notes are in a worker's heartbeat file, which arbiter and worker both have open: a signal only says "end";
the notes say why, and the worker acts accordingly.
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
"""Environment variable that tells workers where a real engine is."""


def hand_over(settings: Settings, environ: MutableMapping[str, str]) -> None:
    """Write down, as JSON, the settings that differ from their defaults."""
    environ[SETTINGS] = json.dumps(to_plain(settings))


def handed_over(environ: Mapping[str, str]) -> Settings | None:
    """The settings that `hand_over` wrote, or None where nobody did. ConfigError as `from_plain`."""
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
    """Note one of the stages; the time of the last heartbeat stays as it is."""
    file = worker.tmp.fileno()
    heartbeat = os.fstat(file)
    os.pwrite(file, b"x", stage)
    os.utime(file, ns=(heartbeat.st_atime_ns, heartbeat.st_mtime_ns))


def _is_noted(worker: Any, stage: int) -> bool:
    return os.pread(worker.tmp.fileno(), 1, stage) == b"x"
