"""Records the answers of a real vLLM to the catalogue: `record`."""

import json
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
from vllm_facts.version import parse_version

RUNS = 2
"""How often each request is recorded, so that what depends on chance is seen to differ."""
MAX_STARTS = 6
"""Most starts of a server in a configuration, whose engine ends at requests that it cannot take."""
ENGINE_ENDED = b"EngineCore encountered an issue"
"""Words of the answer to a request at which the engine ended."""
OUTLIVES_FORMS = "0.26.0"
"""First release whose engine outlives structured outputs that its backend cannot compile."""
UNCOMPILED = ('"maxProperties"', '"json_object": false')
"""Parts of the JSON of such structured outputs, beside choices of texts with line breaks."""
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
    recorded = [case for case in cases if not _ends_engine(version, case)]
    remaining = [(run, case) for run in range(RUNS) for case in recorded]
    ending: set[str] = set()
    logs: list[str] = []
    while remaining and len(logs) < MAX_STARTS:
        with running_vllm(version, CONFIGURATIONS[name]) as server:
            client = Client(server.port)
            while remaining:
                run, case = remaining.pop(0)
                if case.name in ending:
                    continue
                sent = time.monotonic()
                answer, counts = client.send(case)
                if ENGINE_ENDED in answer.body:
                    print(f"{case.name}: the engine ends; its answers are not stored")
                    ending.add(case.name)
                    break
                answers.append(stored(case, run, answer, counts))
                if time.monotonic() - sent > SLOW_S:
                    print(f"{case.name}: answered after {time.monotonic() - sent:.0f} s")
            logs.append(server.log())
    kept = [answer for answer in answers if answer.case not in ending]
    write_answers(version, name, kept)
    _write_log(version, name, "".join(logs))
    seconds = time.monotonic() - start
    print(
        f"vLLM {version}, {name}: {len(recorded)} of {len(cases)} cases, {seconds:.0f} s, "
        f"{len(logs)} starts"
    )


def _ends_engine(version: str, case: Case) -> bool:
    """Returns whether the engine of a release is known to end at a request."""
    body = case.body
    form = body.get("structured_outputs") if isinstance(body, dict) else None
    choices = form.get("choice") if isinstance(form, dict) else None
    has_lines = isinstance(choices, list) and any("\n" in str(choice) for choice in choices)
    is_uncompiled = has_lines or any(part in json.dumps(form) for part in UNCOMPILED)
    return is_uncompiled and parse_version(version) < parse_version(OUTLIVES_FORMS)
