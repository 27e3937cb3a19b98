"""Records the answers of a real vLLM to the catalogue: `record`."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fidelity.oracle.answers import (
    StoredAnswer,
    help_file_of,
    is_current,
    read_answers,
    stored,
    write_answers,
)
from fidelity.oracle.cases import Case
from fidelity.oracle.catalogue import cases_of
from fidelity.oracle.configurations import ADAPTER_FOLDER, CONFIGURATIONS, MODEL_FOLDER, STORE
from fidelity.oracle.install import python_of
from fidelity.oracle.model import write_adapter, write_model
from fidelity.oracle.sending import Client
from fidelity.oracle.servers import help_of, running_vllm

RUNS = 2
"""How often each request is recorded, so that what depends on chance is seen to differ."""
SLOW_S = 20.0
"""Time after which a case is named as slow: vLLM may not answer it at all."""


def record(version: str, names: Sequence[str], is_repeated: bool) -> int:
    """Records the configurations whose cases have changed; all of them if `is_repeated`.

    The log of vLLM is stored beside the answers. A configuration that does not start is reported,
    and the others are recorded. Returns the exit status.
    """
    status = 0
    _record_help(version)
    write_model(MODEL_FOLDER)
    write_adapter(ADAPTER_FOLDER)
    for name in names:
        cases = cases_of(name)
        if not is_repeated and is_current(read_answers(version, name), cases):
            print(f"vLLM {version}, {name}: {len(cases)} answers are stored")
            continue
        print(f"vLLM {version}, {name}: starting ...", flush=True)
        try:
            _record_configuration(version, name, cases)
        except RuntimeError as error:
            log_file = _write_log(version, name, str(error))
            last_line = str(error).strip().splitlines()[-1]
            print(f"vLLM {version}, {name}: {last_line}; {log_file} has its log", file=sys.stderr)
            status = 1
    return status


def _record_help(version: str) -> None:
    path = help_file_of(version)
    if not path.exists():
        path.write_text(help_of(python_of(version)), "utf-8")


def _write_log(version: str, name: str, text: str) -> Path:
    path = STORE / version / f"{name}.log"
    path.write_text(text, "utf-8")
    return path


def _record_configuration(version: str, name: str, cases: Sequence[Case]) -> None:
    """Records the answers to all cases of a configuration.

    Raises:
        RuntimeError: the server does not start or does not stop; the text has its log.
    """
    start = time.monotonic()
    answers: list[StoredAnswer] = []
    with running_vllm(version, CONFIGURATIONS[name]) as server:
        start_seconds = time.monotonic() - start
        for run in range(RUNS):
            client = Client(server.port)
            for case in cases:
                sent = time.monotonic()
                answer, counts = client.send(case)
                answers.append(stored(case, run, answer, counts))
                if time.monotonic() - sent > SLOW_S:
                    print(f"{case.name}: answered after {time.monotonic() - sent:.0f} s")
        write_answers(version, name, answers)
        _write_log(version, name, server.log())
    seconds = time.monotonic() - start
    print(
        f"vLLM {version}, {name}: {len(cases)} cases, {seconds:.0f} s, "
        f"{start_seconds:.0f} s of them for the start"
    )
