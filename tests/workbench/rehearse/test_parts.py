"""The parts of a rehearsal: code of clients, JUnit files, command lines, and reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.recording.exchange import (
    Exchange,
    RecordedAnswer,
    RecordedChunk,
    RecordedRequest,
)
from workbench.check.command import read_lines_of
from workbench.rehearse.client_code import MAX_FILE_BYTES, ClientCode, paths_in, read_code
from workbench.rehearse.deployment import DEFAULT_MODEL, Deployment
from workbench.rehearse.items import Differences, Item
from workbench.rehearse.junit import ResultsReader, file_states, read_results, result_files
from workbench.rehearse.report import FORMATS, render
from workbench.rehearse.thoughts import has_thoughts, place_of_thoughts
from workbench.rehearse.traffic import Event, leaves_of, prefixes_of
from workbench.rehearse.verdict import Verdict

HOSTILE = "<script>%0A::error::x</script>\x1b[31m\n::warning::y"


def deployment(*words: str, folder: str = "") -> Deployment:
    [line] = read_lines_of([], ["vllm", "serve", *words])
    return Deployment(line, folder)


def test_names_in_code_are_whole_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("reasoning_content_length = 1\n")
    Path("b.ts").write_text("\n  message.reasoning_content\n")
    Path("notes.md").write_text("reasoning_content\n")
    for folder in ("node_modules", ".hidden"):
        Path(folder).mkdir()
        Path(folder, "a.js").write_text("reasoning_content")
    Path("environment").mkdir()
    Path("environment", "pyvenv.cfg").touch()
    Path("environment", "lib.py").write_text("reasoning_content")
    code = read_code([], ".")
    assert sorted(code.texts) == ["a.py", "b.ts"]
    place = code.place("reasoning_content")
    assert place is not None
    assert (place.file, place.line, place.column) == ("b.ts", 2, 11)
    assert code.place("reasoning") is None


@pytest.mark.parametrize(("surplus", "is_cut"), [(0, False), (1, True)])
def test_code_behind_the_limit_of_a_file_is_not_searched(
    surplus: int, is_cut: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_bytes(b"#" * (MAX_FILE_BYTES + surplus))
    (tmp_path / "b.py").write_text("reasoning_content\n")
    code = read_code([], str(tmp_path))
    assert code.is_cut is is_cut
    assert code.place("reasoning_content") is not None


@pytest.mark.parametrize(
    ("text", "is_repaired"),
    [
        ("m.reasoning_content", False),
        ("# the reasoning\nm.reasoning_content", False),
        ("m.get('reasoning') or m.get('reasoning_content')", True),
        ("m.reasoning or m.reasoning_content", True),
    ],
)
def test_repaired_code_reads_the_new_name(text: str, is_repaired: bool) -> None:
    code = ClientCode({"a.py": text})
    assert (code.unrepaired_place("reasoning_content", "reasoning") is None) is is_repaired


def test_paths_of_a_command_are_code_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tests").mkdir()
    Path("tests", "test_a.py").touch()
    Path("data.csv").touch()
    words = ["pytest", "tests/test_a.py::test_b", "tests", "data.csv", "--x=tests", "missing.py"]
    assert paths_in(words) == ["tests/test_a.py", "tests", "tests"]
    shell = ["bash", "-c", "cd x; exec python 'tests/test_a.py' --junitxml=results.xml"]
    assert paths_in(shell) == ["tests/test_a.py"]
    assert result_files(shell) == {"results.xml": True}
    assert result_files(["run", "in.xml", "--junit-xml", "out.xml"]) == {
        "in.xml": False,
        "out.xml": True,
    }


def test_results_of_tests_are_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="a.b" name="c"/>'
        '<testcase classname="a.b" name="d"><failure message="x">y</failure></testcase>'
        '<testcase name="e"><skipped/></testcase><testcase name="f"><error/></testcase>'
        '<testcase name="g"><skipped type="pytest.xfail" message="known"/></testcase>'
        '<testcase name="h" status="notrun"/><testcase name="e"/>'
        '</testsuite><testsuite name="s"><error message="no server"/></testsuite></testsuites>'
    )
    tests, problems = read_results({str(path): True}, {})
    assert problems == []
    assert {name: (test.state, test.error, test.count) for name, test in tests.items()} == {
        "a.b.c": ("passed", "", 1),
        "a.b.d": ("failed", "x", 1),
        "e": ("skipped", "", 2),
        "f": ("failed", "", 1),
        "g": ("xfailed", "known", 1),
        "h": ("skipped", "", 1),
        "s": ("failed", "no server", 1),
    }


def test_results_of_several_files_are_joined(tmp_path: Path) -> None:
    for name, case in [("a.xml", ""), ("b.xml", "<failure>KeyError: 1\n\nat x.js:3</failure>")]:
        case = f'<testcase name="same">{case}</testcase>'
        (tmp_path / name).write_text(f"<testsuite>{case}</testsuite>")
    paths = {str(tmp_path / name): True for name in ("a.xml", "b.xml")}
    [test] = read_results(paths, {}).tests.values()
    assert (test.state, test.error, test.count) == ("failed", "KeyError: 1", 2)
    assert "at x.js:3" in test.reason


@pytest.mark.parametrize(
    ("content", "must_be_written", "problem"),
    [
        (None, True, "was not written"),
        (None, False, ""),
        ("<testsuites><testsuite/></testsuites>", False, "has no test"),
        ("<coverage/>", False, ""),
        ("<coverage/>", True, "has no test"),
        ("<testsuite><testcase name='a'>", False, "cannot be read: not XML"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><testsuite/>", True, "cannot be read: a document type"),
    ],
)
def test_file_without_results_is_a_problem(
    content: str | None, must_be_written: bool, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "results.xml"
    if content is not None:
        path.write_text(content)
    tests, problems = read_results({str(path): must_be_written}, {})
    assert tests == {}
    assert len(problems) == bool(problem)
    assert all(text.startswith(f"{path} {problem}") for text in problems)


def test_only_files_that_the_command_writes_have_results(tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text('<testsuite><testcase name="a"/></testsuite>')
    before = file_states([str(path)])
    not_written = ({}, [f"{path} was not written"])
    assert read_results({str(path): True}, before) == not_written
    path.unlink()
    assert read_results({str(path): True}, before) == not_written
    path.write_text('<testsuite><testcase name="other"/></testsuite>')
    assert list(read_results({str(path): True}, before).tests) == ["other"]


@given(content=st.binary(max_size=200))
def test_damaged_results_are_refused(content: bytes) -> None:
    reader = ResultsReader()
    try:
        reader.read(content)
    except ValueError:
        return
    assert reader.results == {}


def test_document_types_are_refused() -> None:
    entity = b'<!DOCTYPE a [<!ENTITY b "cccc">]><testsuite><testcase name="&b;"/></testsuite>'
    with pytest.raises(ValueError, match="document type"):
        ResultsReader().read(entity)


@pytest.mark.parametrize("encoding", ["nonsense", "bz2"])
def test_unknown_encodings_of_results_are_refused(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text(f'<?xml version="1.0" encoding="{encoding}"?><testsuite/>')
    assert read_results({str(path): True}, {}).tests == {}


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ([{"a": [1]}], ["$[].a"]),
        ([1, 2], []),
        ([[{"a": {"b": 1}}]], ["$[][].a.b", "$[][].a"]),
        ({"a": [{"$": 1}]}, ["$.a[].$", "$.a"]),
    ],
)
def test_prefixes_of_a_path_end_below_the_root(value: object, paths: list[str]) -> None:
    [path] = {path for path, _ in leaves_of([Event("", value)])}
    assert list(prefixes_of(path)) == paths


def test_each_version_gets_the_options_that_it_has() -> None:
    server = deployment("Qwen/Qwen3-8B", "--swap-space", "4", "--port", "9000", "--max-num-seqs=8")
    assert server.words("0.11.2") == ["Qwen/Qwen3-8B", "--swap-space=4", "--max-num-seqs=8"]
    assert server.words("0.20.2") == ["Qwen/Qwen3-8B", "--max-num-seqs=8"]
    assert server.notes == []


def test_renamed_option_has_its_new_name() -> None:
    server = deployment("Qwen/Qwen3-8B", "--guided-decoding-backend", "xgrammar")
    expected = ["Qwen/Qwen3-8B", '--structured-outputs-config={"backend": "xgrammar"}']
    assert server.words("0.20.2") == expected


def test_unknown_model_keeps_its_name() -> None:
    server = deployment("our/model", "--chat-template", "/templates/ours.jinja")
    assert server.words("0.32.0") == [DEFAULT_MODEL, "--served-model-name", "our/model"]
    assert len(server.notes) == 2


def verdict(*breaks: Item) -> Verdict:
    changes = [Item(kind="behavior", file="POST /v1/messages", message=HOSTILE)]
    return Verdict("0.27.1", "0.33.0", Differences([*breaks], changes), ["Nothing."])


BREAK = Item(kind="file", file=f"a{HOSTILE}.py", line=3, message=HOSTILE, why=HOSTILE, fix=HOSTILE)


@pytest.mark.parametrize("format", FORMATS)
def test_texts_of_strangers_are_escaped(format: str) -> None:
    text = render(verdict(BREAK), format, shows_changes=True)
    assert "\x1b" not in text
    assert not any(line.startswith(("::warning", "::error::x")) for line in text.splitlines())
    if format == "html":
        assert "<script" not in text


def test_json_has_all_parts() -> None:
    document = json.loads(render(verdict(BREAK), "json"))
    assert document["answer"] == "Not ready: 1 thing breaks."
    assert document["breaks"][0]["line"] == 3
    assert (document["ready"], document["from"], document["to"]) == (False, "0.27.1", "0.33.0")


@pytest.mark.parametrize(("breaks", "count"), [((), 0), ((BREAK,), 1)])
def test_junit_has_a_failure_for_each_break(breaks: tuple[Item, ...], count: int) -> None:
    root = ElementTree.fromstring(render(verdict(*breaks), "junit"))
    assert len(root.findall(".//failure")) == count
    assert len(root.findall("testcase")) == max(count, 1)


def test_text_begins_with_the_answer_and_folds_changes() -> None:
    text = render(verdict(), "text")
    assert text.splitlines()[0] == "Ready to upgrade."
    assert "1 change without a break; --notes lists them." in text
    assert "POST /v1/messages" not in text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# the reasoning of this client\nthinking = True", None),
        ("print(reasoning_content_length)", None),
        ("if thinking == 3: pass", None),
        ("\nprint(message.reasoning)", 2),
        ("\nmessage.get('reasoning_content')", 2),
        ("create(\n    reasoning_effort='low',\n)", 2),
        ('{"chat_template_kwargs": {"enable_thinking": false}}', 1),
        ('{ thinking: 1, "thinking": {} }', 1),
    ],
)
def test_client_asks_for_thoughts_by_a_field(text: str, line: int | None) -> None:
    place = place_of_thoughts(ClientCode({"client.py": text}))
    assert (None if place is None else place.line) == line


@pytest.mark.parametrize(
    ("request_body", "answer_body", "expected"),
    [
        ({"messages": []}, {"reasoning": None}, False),
        ({"messages": [{"content": "reasoning"}]}, {"content": "thinking"}, False),
        ({"reasoning_effort": "low"}, {}, True),
        ({"chat_template_kwargs": {"thinking": False}}, {}, True),
        ({}, {"message": {"reasoning_content": "hm"}}, True),
        ({}, {"message": {"reasoning": "hm"}}, True),
    ],
)
def test_recording_has_thoughts(
    request_body: dict[str, Any], answer_body: dict[str, Any], expected: bool
) -> None:
    exchange = Exchange(
        at_s=0.0,
        request=RecordedRequest("POST", "/v1/chat/completions", body=json.dumps(request_body)),
        answer=RecordedAnswer(200, (), 0.0, [RecordedChunk(0.0, json.dumps(answer_body))], 0.0),
    )
    assert has_thoughts([exchange]) is expected
