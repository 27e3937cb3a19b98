"""What breaks in clients between two versions, and what only changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workbench.rehearse.played import CHAT, Sent, chat, rehearsed, run_of
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.items import Differences
from workbench.rehearse.runs import Run
from workbench.rehearse.verdict import DOWNGRADE, verdict_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
READS_OLD_NAME = "print(message.reasoning_content)\n"
READS_NEW_NAME = "print(message.reasoning)\n"
READS_BOTH = "print(message.get('reasoning') or message.get('reasoning_content'))\n"


def test_ignored_field_breaks_although_both_versions_answer() -> None:
    code = "import openai\n\nask(guided_json=SCHEMA)\n"
    verdict = rehearsed("0.11", "0.20", code, chat(guided_json=SCHEMA))
    [item] = verdict.differences.breaks
    assert verdict.answer == "Not ready: 1 thing breaks."
    assert verdict.status == 1
    assert item.place == "client.py:3"
    assert "ignores the field `guided_json` of 1 request" in item.message
    assert "These fields are ignored" in item.why
    assert item.fix == "send `structured_outputs.json` instead of `guided_json`"


@pytest.mark.parametrize("versions", [("0.11", "0.20"), ("0.27", "0.33"), ("0.20", "0.20")])
def test_repaired_field_does_not_break(versions: tuple[str, str]) -> None:
    verdict = rehearsed(*versions, "", chat(structured_outputs={"json": SCHEMA}, temperature=0))
    assert [item.message for item in verdict.differences.breaks if "ignores" in item.message] == []


def test_deeply_nested_field_is_no_obstacle() -> None:
    nested: object = 1
    for _ in range(900):
        nested = {"a": nested}
    verdict = rehearsed("0.11", "0.20", "pass\n", chat(guided_json=SCHEMA), chat(ours=nested))
    [item] = verdict.differences.breaks
    assert "ignores the field `guided_json` of 1 request" in item.message


def test_field_beside_its_replacement_does_not_break() -> None:
    request = chat(guided_json=SCHEMA, structured_outputs={"json": SCHEMA})
    verdict = rehearsed("0.11", "0.20", "pass\n", request)
    assert verdict.is_ready, verdict.differences.breaks
    assert any("guided_json" in item.message for item in verdict.differences.changes)


@pytest.mark.parametrize("stream", [False, True])
def test_value_that_is_gone_breaks_a_client_that_reads_it(stream: bool) -> None:
    verdict = rehearsed("0.11", "0.20", READS_OLD_NAME, chat(stream=stream))
    [item] = [item for item in verdict.differences.breaks if item.kind == "answer field"]
    assert item.place == "client.py:1"
    assert "`reasoning_content` is gone" in item.message
    assert "`reasoning_content` is gone." in item.why
    assert item.fix == "read `reasoning`, which has the same value"


@pytest.mark.parametrize("code", [READS_NEW_NAME, READS_BOTH])
@pytest.mark.parametrize("old", ["0.10", "0.11"])
def test_value_that_is_gone_does_not_break_a_repaired_client(code: str, old: str) -> None:
    verdict = rehearsed(old, "0.20", code, chat())
    assert verdict.is_ready, verdict.differences.breaks
    assert any("reasoning_content" in item.message for item in verdict.differences.changes)


def test_value_that_is_gone_breaks_a_client_without_code_to_look_into() -> None:
    verdict = rehearsed("0.11", "0.20", "", chat())
    assert "`reasoning_content` is gone" in verdict.differences.breaks[0].message


def test_field_that_moved_is_named_with_its_new_name() -> None:
    [item] = rehearsed("0.10", "0.20", READS_OLD_NAME, chat()).differences.breaks
    assert item.fix == "read `reasoning`, which has the same value"


@pytest.mark.parametrize(
    ("sent", "error", "fix"),
    [
        (chat(temperature=2.5), "temperature", "change `temperature`"),
        (chat(tools=[]), "tools", "remove `tools`"),
    ],
)
def test_request_that_fails_after_the_upgrade_breaks(sent: Sent, error: str, fix: str) -> None:
    [item] = rehearsed("0.19", "0.33", "pass\n", sent).differences.breaks
    assert item.place == f"POST {CHAT}"
    assert "answers 400 instead of 200 to 1 request" in item.message
    assert error in item.message
    assert item.why.startswith("Before vLLM 0.2")
    assert item.fix.startswith(fix)


def test_plain_client_is_ready() -> None:
    sent = (chat(), chat(stream=True), Sent("/v1/models"), Sent("/metrics"))
    completion = Sent("/v1/completions", {"prompt": "Once", "max_tokens": 5, "logprobs": 1})
    verdict = rehearsed("0.27", "0.33", "pass\n", *sent, completion)
    assert verdict.is_ready, verdict.differences.breaks
    assert verdict.answer == "Ready to upgrade."
    assert verdict.status == 0
    assert any("new fields" in item.message for item in verdict.differences.changes)


def test_texts_of_tokens_are_no_fields() -> None:
    old = run_of("0.32", [Sent("/v1/completions", {"prompt": "One", "logprobs": 2})])
    new = run_of("0.33", [Sent("/v1/completions", {"prompt": "Two", "logprobs": 2})])
    verdict = verdict_of(old, new, ClientCode({}), of_files=Differences())
    assert verdict.is_ready, verdict.differences.breaks


@pytest.mark.parametrize(
    ("code", "breaks"), [("pass\n", False), ("if event.type == 'response.completed': ...\n", True)]
)
def test_event_that_is_gone_breaks_a_client_that_names_it(code: str, breaks: bool) -> None:
    request = Sent("/v1/responses", {"input": "Hello", "max_output_tokens": 4, "stream": True})
    verdict = rehearsed("0.32", "0.33", code, request)
    items: Any = verdict.differences.breaks if breaks else verdict.differences.changes
    [item] = [item for item in items if item.kind == "stream"]
    assert "no `response.completed` any more" in item.message
    assert "`response.incomplete`" in item.why
    assert verdict.is_ready is not breaks


def test_metric_that_is_gone_breaks_code_that_names_it() -> None:
    code = "usage = metrics['vllm:gpu_cache_usage_perc']\n"
    [item] = rehearsed("0.10", "0.11", code, Sent("/metrics")).differences.breaks
    assert item.place == "client.py:1"
    assert item.kind == "metric"
    assert rehearsed("0.10", "0.11", "pass\n", Sent("/metrics")).is_ready


def test_failing_command_breaks_without_another_reason() -> None:
    verdict = rehearsed("0.32", "0.33", "pass\n", chat(), status=3)
    [item] = [item for item in verdict.differences.breaks if item.kind == "command"]
    assert "the exit status is 3 with vLLM 0.33.0" in item.message


def test_failing_command_is_a_consequence_of_what_breaks() -> None:
    verdict = rehearsed("0.19", "0.33", "pass\n", chat(temperature=2.5), status=1)
    assert [item.kind for item in verdict.differences.breaks] == ["request"]
    assert [item.kind for item in verdict.differences.consequences] == ["command"]


def with_tests(run: Run, **results: Any) -> Run:
    run.tests = results
    return run


def test_tests_that_fail_after_the_upgrade_break() -> None:
    old = with_tests(run_of("0.32", [chat()], 1), a="passed", b="failed", c="passed", d="skipped")
    new = with_tests(run_of("0.33", [chat()], 1), a="passed", b="failed", c="failed", d="failed")
    verdict = verdict_of(old, new, ClientCode({}), of_files=Differences())
    assert [item.file for item in verdict.differences.breaks] == ["c"]


def test_command_that_fails_before_the_upgrade_gives_no_answer() -> None:
    old = run_of("0.32", [chat()], 1, "Traceback\nKeyError: 'x'\n")
    verdict = verdict_of(old, run_of("0.33", [chat()], 1), ClientCode({}), of_files=Differences())
    assert verdict.status == 2
    assert verdict.answer == "Not known: the command fails with vLLM 0.32.0, too: KeyError: 'x'."


def test_client_without_a_request_gives_no_answer() -> None:
    verdict = verdict_of(
        run_of("0.32", []), run_of("0.33", []), ClientCode({}), of_files=Differences()
    )
    assert verdict.status == 2


@pytest.mark.parametrize(
    ("old", "new", "is_named"), [("0.33", "0.32", True), ("0.32", "0.33", False)]
)
def test_report_of_a_downgrade_names_its_limit(old: str, new: str, is_named: bool) -> None:
    assert (DOWNGRADE in rehearsed(old, new, "", chat()).unseen) is is_named
