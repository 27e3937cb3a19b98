"""The folder of a study, as far as `simulate` and `plan` read it (docs/study.md)."""

from pathlib import Path

from msgspec import Struct

from config import ConfigError, UsageError
from config.declaration import COMMAND
from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.load.workload import WORKLOAD_FILE

COMPARISON_FILE = "comparison.json"
ACCEPT_FLAG = "--accept-study"
UNCOMPARED = "not compared with a simulation"


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


def check_study(folder: Path, *, is_accepted: bool) -> str:
    """Returns the errors of the simulation of the measured fleet, as a sentence.

    A study must be accepted if it was not compared, or if its errors are above the limit.

    Raises:
        UsageError: Such a study is not accepted.
        ConfigError: `comparison.json` cannot be read.
    """
    path = folder / COMPARISON_FILE
    accept = f"or add {ACCEPT_FLAG} to plan anyway"
    if not path.is_file():
        if is_accepted:
            return UNCOMPARED
        raise UsageError(
            f"--study {folder}: {UNCOMPARED}; run {COMMAND} study compare {folder}, {accept}"
        )
    try:
        verdict = decode_untrusted(read_whole(path), type=StudyVerdict)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UntrustedDataError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not (verdict.within_limit or is_accepted):
        raise UsageError(
            f"--study {folder}: {verdict.verdict}; run {COMMAND} study compare {folder}"
            f" --calibrate, {accept}"
        )
    return verdict.verdict
