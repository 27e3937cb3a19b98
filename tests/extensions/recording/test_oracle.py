"""The oracle's use of recordings: its files, its rules, and its client."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.extensions.recording.comparison import ReceivedAnswer
from app.extensions.recording.lines import recorded
from fidelity.oracle import answers as answers_module
from fidelity.oracle import recording as recording_module
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


class EndingVllm:
    """A vLLM whose engine ends at the requests of some cases; also its client."""

    def __init__(self, ending: set[str]) -> None:
        self.ending = ending
        self.starts = 0

    @contextmanager
    def running(self, version: str, configuration: object) -> Iterator[SimpleNamespace]:
        self.starts += 1
        yield SimpleNamespace(port=1, log=lambda: "started\n")

    def client(self, port: int) -> "EndingVllm":
        return self

    def send(self, case: Case) -> tuple[ReceivedAnswer, dict[str, float]]:
        words = "EngineCore encountered an issue" if case.name in self.ending else "{}"
        return _outcome(words).answer, {}


@pytest.fixture
def cases(store: Path, monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    cases = [
        Case(name=f"a: {number}", area="a", reason="A reason.", path="/p") for number in range(20)
    ]
    monkeypatch.setattr(recording_module, "STORE", store)
    monkeypatch.setattr(recording_module, "cases_of", lambda name, version: cases)
    monkeypatch.setattr(recording_module, "_record_help", lambda version: None)
    monkeypatch.setattr(recording_module, "write_model", lambda folder: None)
    monkeypatch.setattr(recording_module, "write_adapter", lambda folder: None)
    return cases


def _recording_status(vllm: EndingVllm, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(recording_module, "running_vllm", vllm.running)
    monkeypatch.setattr(recording_module, "Client", vllm.client)
    return recording_module.record("0.11.2", ["base"], is_repeated=False)


def test_all_cases_are_recorded_but_those_at_which_the_engine_ends(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    ending = {case.name for case in cases[1::2]}
    vllm = EndingVllm(ending)
    assert _recording_status(vllm, monkeypatch) == 0
    assert vllm.starts == len(ending) + 1
    read = read_answers("0.11.2", "base")
    assert set(read) == {case.name for case in cases} - ending
    assert {len(runs) for runs in read.values()} == {recording_module.RUNS}


def test_engine_that_ends_at_every_request_is_reported_with_the_answers_before(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vllm = EndingVllm({case.name for case in cases[3:]})
    assert _recording_status(vllm, monkeypatch) == 1
    assert vllm.starts == 1 + recording_module.MAX_STARTS
    assert "the engine ends at once in 6 starts in a row" in capsys.readouterr().err
    assert set(read_answers("0.11.2", "base")) == {case.name for case in cases[:3]}


def test_cases_that_a_release_cannot_answer_are_not_missed(
    cases: list[Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"structured_outputs": {"choice": ["yes\nno"]}}
    cases.append(Case(name="a: lines", area="a", reason="A reason.", path="/p", body=body))
    vllm = EndingVllm(set())
    for _ in range(2):
        assert _recording_status(vllm, monkeypatch) == 0
    assert vllm.starts == 1
    assert len(read_answers("0.11.2", "base")) == len(cases) - 1


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
    cases = cases_of("base", "0.32.0")[:5]
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
