"""Records the answers of a real vLLM to the catalogue: `record`."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
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
"""Most starts of a server in a row whose engine ends at the first request."""
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
        cases = [case for case in cases_of(name, version) if not _ends_engine(version, case)]
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

    The server is started again after a request at which its engine ends: the case has no answers.

    Raises:
        RuntimeError: the server does not start or does not stop, or its engine ends at each
            request; the text has the log.
    """
    start = time.monotonic()
    answers: list[StoredAnswer] = []
    remaining = [(run, case) for run in range(RUNS) for case in cases]
    logs: list[str] = []
    case_count = len(cases)
    starts_in_vain = 0
    while remaining and starts_in_vain < MAX_STARTS:
        with running_vllm(version, CONFIGURATIONS[name]) as server:
            client = Client(server.port)
            _keep_values(client, cases, remaining[0][1])
            new_answers = [*_answers_until_end(client, remaining)]
            logs.append(server.log())
        starts_in_vain = 0 if new_answers else starts_in_vain + 1
        answers += new_answers
        remaining = remaining[len(new_answers) :]
        if remaining:
            _, ending = remaining[0]
            print(f"{ending.name}: the engine ends; its answers are not stored", flush=True)
            cases = [case for case in cases if case is not ending]
            remaining = [(run, case) for run, case in remaining if case is not ending]
            answers = [answer for answer in answers if answer.case != ending.name]
    write_answers(version, name, answers)
    log = "".join(logs)
    if remaining:
        raise RuntimeError(f"{log}\nthe engine ends at once in {MAX_STARTS} starts in a row")
    _write_log(version, name, log)
    seconds = time.monotonic() - start
    count = len({answer.case for answer in answers})
    print(
        f"vLLM {version}, {name}: {count} of {case_count} cases, {seconds:.0f} s, "
        f"{len(logs)} starts"
    )


def _keep_values(client: Client, cases: Sequence[Case], next_case: Case) -> None:
    """Sends the cases before `next_case` again that keep values for later ones.

    A server that was started again has none of the stored responses of the one before it.
    """
    for case in takewhile(lambda case: case is not next_case, cases):
        if case.keep:
            client.send(case)


def _answers_until_end(
    client: Client, requests: Sequence[tuple[int, Case]]
) -> Iterator[StoredAnswer]:
    """Yields the answers to the requests before one at which the engine ends."""
    for run, case in requests:
        start = time.monotonic()
        answer, counts = client.send(case)
        seconds = time.monotonic() - start
        if ENGINE_ENDED in answer.body:
            return
        if seconds > SLOW_S:
            print(f"{case.name}: answered after {seconds:.0f} s", flush=True)
        yield stored(case, run, answer, counts)


def _ends_engine(version: str, case: Case) -> bool:
    """Returns whether the engine of a release is known to end at a request."""
    body = case.body if isinstance(case.body, dict) else {}
    form = body.get("structured_outputs")
    choices = form.get("choice") if isinstance(form, dict) else body.get("guided_choice")
    has_lines = isinstance(choices, list) and any("\n" in str(choice) for choice in choices)
    is_uncompiled = has_lines or any(part in json.dumps(form) for part in UNCOMPILED)
    return is_uncompiled and parse_version(version) < parse_version(OUTLIVES_FORMS)
