"""The oracle's use of recordings: its files, its rules, and its client."""

from pathlib import Path

import pytest

from app.extensions.recording.comparison import ReceivedAnswer
from app.extensions.recording.lines import recorded
from fidelity.oracle import answers as answers_module
from fidelity.oracle.answers import (
    file_of,
    help_file_of,
    is_current,
    read_answers,
    stored,
    write_answers,
)
from fidelity.oracle.cases import Area, Case
from fidelity.oracle.catalogue import cases_of
from fidelity.oracle.comparing import Outcome, disagreements, least_disagreements
from fidelity.oracle.releases import compare_versions
from fidelity.oracle.sending import samples_of

NAMES = ("vLLM", "Understudy")
CASE = Case(name="a: b", area="a", reason="A reason.", path="/p", body={"n": 1})


def _outcome(body: str, status: int = 200, **counts: float) -> Outcome:
    headers = [("content-type", "application/json")]
    return Outcome(ReceivedAnswer(status, headers, body.encode()), counts)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(answers_module, "STORE", tmp_path)
    return tmp_path


def test_stored_oracle_responses_are_read_back_by_case_and_run(store: Path) -> None:
    outcome = _outcome('{"id": "x"}')
    written = [stored(CASE, run, outcome.answer, {"c": 1.0}) for run in (0, 1)]
    write_answers("1.0", "base", written)
    read = read_answers("1.0", "base")
    assert [answer.run for answer in read[CASE.name]] == [0, 1]
    assert read[CASE.name][0].outcome().answer.body == b'{"id": "x"}'
    assert read[CASE.name][0].counts == {"c": 1.0}


def test_stored_oracle_responses_can_be_read_as_a_recording(store: Path) -> None:
    write_answers("1.0", "base", [stored(CASE, 0, _outcome("{}").answer, {})])
    [(_, exchange)] = recorded(str(file_of("1.0", "base")))
    assert (exchange.request.target, exchange.request.body) == ("/p", '{"n":1}')


def test_stored_oracle_responses_are_outdated_once_a_request_changes(store: Path) -> None:
    write_answers("1.0", "base", [stored(CASE, 0, _outcome("{}").answer, {})])
    read = read_answers("1.0", "base")
    changed = Case(name=CASE.name, area="a", reason="Another.", path="/p", body={"n": 2})
    explained = Case(name=CASE.name, area="a", reason="Another.", path="/p", body={"n": 1})
    assert is_current(read, [explained])
    assert not is_current(read, [changed])
    assert not is_current(read, [CASE, changed])
    assert not is_current(read_answers("1.0", "other"), [CASE])


def test_differences_in_error_messages_and_counters_are_reported() -> None:
    area = Area("a", path="/p")
    area.case("words", "A reason.", words=(r"at least \d+",))
    [case] = area.cases
    first = _outcome('{"message": "at least 5 tokens"}', requests=1)
    second = _outcome('{"message": "needs at least 6"}', requests=2)
    assert disagreements(case, first, second, NAMES) == [
        r"words at least \d+: at least 5 of vLLM, at least 6 of Understudy",
        "requests: 1 by vLLM, 2 by Understudy",
    ]


def test_response_is_compared_with_the_closest_recorded_response() -> None:
    runs = [_outcome('{"a": 1}'), _outcome('{"a": null}')]
    assert least_disagreements(CASE, runs, _outcome('{"a": null}'), NAMES) == []
    assert len(least_disagreements(CASE, runs, _outcome('{"a": "x"}'), NAMES)) == 2


def test_compared_metric_samples_have_no_model_and_engine_labels() -> None:
    exposition = 'a_total{engine="0",model_name="m",reason="stop"} 3.0\nb_total 4\n'
    assert dict(samples_of(exposition, ("a_total",))) == {"a_total(reason=stop)": 3.0}


def test_version_comparison_lists_differences_in_options_and_responses(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = cases_of("base")[:5]
    bodies = {"1.0": '{"a": 1}', "2.0": '{"a": 1, "new": null}'}
    for version, body in bodies.items():
        answer = _outcome(body).answer
        written = [stored(case, run, answer, {}) for case in cases for run in (0, 1)]
        write_answers(version, "base", written)
        help_file_of(version).write_text(f"usage: x\n\n  --common\n  --of-{version[0]}\n")
    compare_versions("1.0", "2.0", ["base", "lora"])
    assert capsys.readouterr().out.splitlines() == [
        "options that only 1.0 has: --of-1",
        "options that only 2.0 has: --of-2",
        "1.0, lora: is not recorded",
        "2.0, lora: is not recorded",
        "$.new: null: only in the 2.0 answer",
        f"    {'; '.join(case.name for case in cases[:3])} and 2 more",
        "5 of 5 answers differ between 1.0 and 2.0",
    ]
