"""The folder of a study, as far as `simulate` and `plan` read it (docs/study.md)."""

from pathlib import Path

from msgspec import Struct

from app.extensions.lab.load.workload import WORKLOAD_FILE
from config import ConfigError, UsageError
from config.declaration import COMMAND
from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted

COMPARISON_FILE = "comparison.json"
ACCEPT_FLAG = "--accept-study"


class StudyVerdict(Struct, frozen=True, kw_only=True):
    """The part of `comparison.json` that decides whether `plan` goes on."""

    verdict: str
    """Sentence with the errors of the simulation."""
    within_limit: bool
    """False if an error is larger than the limit of the comparison."""


def workload_file(folder: Path) -> Path:
    """Returns the workload of a study, which is read like a trace.

    Raises:
        ConfigError: The folder is not that of a study.
    """
    path = folder / WORKLOAD_FILE
    if not path.is_file():
        raise ConfigError(f"--study {folder}: no {WORKLOAD_FILE} in this folder")
    return path


def check_study(folder: Path) -> None:
    """Checks that the simulation of the measured fleet is close enough for a plan.

    Raises:
        UsageError: The study was not compared, or its errors are above the limit.
        ConfigError: `comparison.json` cannot be read.
    """
    path = folder / COMPARISON_FILE
    accept = f"or add {ACCEPT_FLAG} to plan anyway"
    if not path.is_file():
        raise UsageError(
            f"--study {folder}: not compared with a simulation; run {COMMAND} study compare"
            f" {folder}, {accept}"
        )
    try:
        verdict = decode_untrusted(read_whole(path), type=StudyVerdict)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UntrustedDataError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not verdict.within_limit:
        raise UsageError(
            f"--study {folder}: {verdict.verdict}; run {COMMAND} study compare {folder}"
            f" --calibrate, {accept}"
        )
