"""The answers of real releases in the repository, compared with those of servers that play them."""

import json
from pathlib import Path

import pytest

from app.core.application import create_app
from app.core.settings import resolve, settings_type
from app.extensions.recording.comparison import ReceivedAnswer
from config.sources import ignore_warning
from fidelity.oracle.answers import StoredAnswer, answers_to
from fidelity.oracle.cases import Case
from fidelity.oracle.catalogue import catalogue_of
from fidelity.oracle.comparing import Outcome, least_disagreements
from fidelity.oracle.configurations import COMMON_VARIABLES, CONFIGURATIONS, MODEL_FOLDER
from fidelity.oracle.keeping import kept_answers, kept_versions
from fidelity.oracle.model import write_model
from fidelity.oracle.servers import arguments, understudy_flags
from tests.running_server import SEED
from vllm_facts.serve import settings_of
from vllm_facts.version import PROVEN, parse_version

KNOWN: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("known_disagreements.json").read_text()
)
"""The cases of each release that are answered otherwise, by name."""


@pytest.mark.parametrize("version", kept_versions())
def test_servers_answer_as_the_release_that_they_play(version: str, tmp_path: Path) -> None:
    catalogue = catalogue_of(version)
    answers = answers_to(catalogue, kept_answers(version))
    cases = [case for case in catalogue if case.name in answers]
    differences: dict[str, str] = {}
    for name in {case.configuration: None for case in cases}:
        own_cases = [case for case in cases if case.configuration == name]
        differences |= differing_cases(version, own_cases, answers, tmp_path)
    known = KNOWN.get(version, [])
    assert {name: differences[name] for name in differences if name not in known} == {}
    assert [name for name in known if name not in differences] == [], "remove them from the list"


def differing_cases(
    version: str, cases: list[Case], answers: dict[str, list[StoredAnswer]], folder: Path
) -> dict[str, str]:
    """Returns the first difference of each case of one configuration, by the case's name."""
    configuration = CONFIGURATIONS[cases[0].configuration]
    model = folder / "model"
    write_model(model)
    words = arguments(version, configuration, port=1)[1:]
    words = [word.replace(str(MODEL_FOLDER), str(model)) for word in words]
    words += understudy_flags(version, configuration)
    variables = {**COMMON_VARIABLES, **configuration.variables, "SIM_SEED": SEED}
    flags = settings_of(words, variables, settings_type())
    client = create_app(resolve(flags, variables, ignore_warning)).test_client()
    differences: dict[str, str] = {}
    for case in cases:
        body = case.body if isinstance(case.body, str | bytes | None) else None
        json_body = None if isinstance(case.body, str | bytes | None) else case.body
        response = client.open(
            case.path,
            method=case.method,
            headers=[*case.headers.items()],
            data=body,
            json=json_body,
        )
        received = ReceivedAnswer(response.status_code, [*response.headers], response.data)
        recorded = [Outcome(answer.outcome().answer, {}) for answer in answers[case.name]]
        lines = least_disagreements(case, recorded, Outcome(received, {}), ("vLLM", "ours"))
        if lines:
            differences[case.name] = lines[0]
    return differences


def test_answers_of_proven_releases_are_kept() -> None:
    assert {parse_version(version).name for version in kept_versions()} <= set(PROVEN)
