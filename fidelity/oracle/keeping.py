"""Keeps the recorded answers of a release in the repository: `keep`, and `kept_answers`.

Only answers are kept that differ from those of the next newer recorded release. The files have the
form of the oracle's recordings (`answers.py`).
"""

import gzip
import os
import re
from collections.abc import Sequence
from pathlib import Path

from fidelity.oracle.answers import StoredAnswer, answers_in, current_answers, recording_of
from fidelity.oracle.cases import Case
from fidelity.oracle.catalogue import cases_of
from fidelity.oracle.comparing import least_disagreements
from fidelity.oracle.configurations import STORE

PLACE = b"/opt/oracle"
"""Stands for the folder of the environments in the files of tracebacks."""
FOLDER = Path(__file__).parent / "recorded" / "catalogue"
_FURTHER_VALUE = re.compile(r"\$\{\w+\}")
"""A value that an earlier case keeps; the answers to such requests are not kept."""
_LASTING = ("/pause", "/sleep")
"""Routes after which other requests wait; the answers to such requests are not kept, either."""


def keep(version: str, newer: str, names: Sequence[str]) -> None:
    """Writes the answers of a version that differ from those of a newer one."""
    kept: list[StoredAnswer] = []
    for name in names:
        cases = cases_of(name, version)
        answers = current_answers(version, name, cases)
        newer_answers = current_answers(newer, name, cases_of(name, newer))
        for case in cases:
            has_value = _FURTHER_VALUE.search(f"{case.path}{case.body}") is not None
            if case.name not in answers or has_value or case.path.startswith(_LASTING):
                continue
            older = _different(case, answers[case.name])
            others = newer_answers.get(case.name, [])
            if others and any(_agree(case, others, answer) for answer in older):
                continue
            kept += older
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = file_of(version)
    recording = recording_of(f"vLLM {version}", kept).replace(os.fsencode(STORE), PLACE)
    path.write_bytes(gzip.compress(recording, mtime=0))
    print(f"{path}: {len({answer.case for answer in kept})} answers of {version}")


def file_of(version: str) -> Path:
    """Returns the file with the kept answers of a version."""
    return FOLDER / f"{version}.jsonl.gz"


def kept_versions() -> list[str]:
    """Returns the versions whose answers are kept."""
    return sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz"))


def kept_answers(version: str) -> dict[str, list[StoredAnswer]]:
    """Returns the kept answers of a version by the names of their cases."""
    return answers_in(gzip.decompress(file_of(version).read_bytes()))


def _different(case: Case, answers: Sequence[StoredAnswer]) -> list[StoredAnswer]:
    """Returns the answers to a case without those that repeat an earlier one."""
    different: list[StoredAnswer] = []
    for answer in answers:
        if not (different and _agree(case, different, answer)):
            different.append(answer)
    return different


def _agree(case: Case, others: Sequence[StoredAnswer], answer: StoredAnswer) -> bool:
    outcomes = [other.outcome() for other in others]
    return not least_disagreements(case, outcomes, answer.outcome(), ("newer", "older"))
