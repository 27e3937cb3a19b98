"""What breaks in clients between two versions, and what only changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from tests.workbench.rehearse.played import CHAT, Sent, chat, rehearsed, run_of
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.items import Differences
from workbench.rehearse.junit import CaseResult
from workbench.rehearse.verdict import DOWNGRADE, Verdict, verdict_of

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


PASSED = CaseResult(state="passed")
SKIPPED = CaseResult(state="skipped", reason="no GPU")
XFAILED = CaseResult(state="xfailed")
FAILED = CaseResult(state="failed", reason="KeyError: 'x'\nclient.py:1: KeyError")


def verdict_with(
    old: Mapping[str, CaseResult],
    new: Mapping[str, CaseResult],
    statuses: tuple[int, int] = (0, 0),
    code: str = "pass\n",
) -> Verdict:
    """The verdict about a client that sends a chat in 0.23 and 0.24, with these tests."""
    old_run = run_of("0.23", [chat()], statuses[0], "old output")
    new_run = run_of("0.24", [chat()], statuses[1], "new output")
    old_run.tests = old
    new_run.tests = new
    texts = ClientCode({"client.py": code})
    return verdict_of(old_run, new_run, texts, of_files=Differences())


def test_tests_that_fail_after_the_upgrade_break() -> None:
    old = {"a": PASSED, "b": FAILED, "c": PASSED, "d": SKIPPED, "e": PASSED}
    new = {"a": PASSED, "b": FAILED, "c": FAILED, "d": FAILED, "e": XFAILED}
    verdict = verdict_with(old, new, (1, 1))
    assert [item.file for item in verdict.differences.breaks] == ["c", "e"]
    assert verdict.differences.breaks[0].message.endswith("fails with 0.24.0: KeyError: 'x'")
    assert [item.file for item in verdict.unknown.items] == ["b", "d"]
    assert verdict.status == 1


@pytest.mark.parametrize(
    ("old", "new", "statuses", "message"),
    [
        (FAILED, FAILED, (1, 1), "fails with both versions: KeyError: 'x'"),
        (FAILED, PASSED, (1, 0), "fails with vLLM 0.23.0: KeyError: 'x'"),
        (SKIPPED, SKIPPED, (0, 0), "is skipped with both versions: no GPU"),
        (PASSED, SKIPPED, (0, 0), "is skipped with vLLM 0.24.0: no GPU"),
        (XFAILED, XFAILED, (0, 0), "fails as expected with both versions"),
        (XFAILED, PASSED, (0, 0), "fails as expected with vLLM 0.23.0"),
        (PASSED, None, (0, 0), "only the run with vLLM 0.23.0 has a test of this name"),
        (None, PASSED, (0, 0), "only the run with vLLM 0.24.0 has a test of this name"),
        (PASSED, PASSED.after(PASSED), (0, 0), "is run 1 time with vLLM 0.23.0, and 2 times"),
    ],
)
def test_test_that_did_not_pass_with_both_versions_is_not_known(
    old: CaseResult | None, new: CaseResult | None, statuses: tuple[int, int], message: str
) -> None:
    results = [{"a": PASSED, "b": PASSED}, {"a": PASSED, "b": PASSED}]
    for tests, result in zip(results, (old, new), strict=True):
        if result is not None:
            tests["c"] = result
    verdict = verdict_with(*results, statuses)
    assert verdict.answer == "Not known for 1 of 3 tests."
    assert verdict.status == 2
    [item] = verdict.unknown.items
    assert item.file == "c"
    assert message in item.message


@pytest.mark.parametrize(
    ("old", "new", "statuses", "answer"),
    [
        ({"a": PASSED}, {"a": PASSED}, (0, 0), "Ready to upgrade."),
        (
            *({"a": PASSED}, {"a": PASSED}, (1, 1)),
            "Not known: the command fails with vLLM 0.23.0, too: old output.",
        ),
        ({"a": FAILED, "b": PASSED}, {}, (1, 2), "Not ready: 1 thing breaks."),
        ({"a": PASSED}, {"a": PASSED}, (0, 1), "Not ready: 1 thing breaks."),
        (
            *({}, {"a": PASSED}, (3, 0)),
            "Not known: the command fails with vLLM 0.23.0: old output.",
        ),
    ],
)
def test_exit_status_that_no_test_explains_is_no_success(
    old: Mapping[str, CaseResult],
    new: Mapping[str, CaseResult],
    statuses: tuple[int, int],
    answer: str,
) -> None:
    assert verdict_with(old, new, statuses).answer == answer


def test_results_that_were_not_written_are_not_known() -> None:
    old = run_of("0.32", [chat()])
    new = run_of("0.33", [chat()])
    new.problems = ["results.xml was not written"]
    verdict = verdict_of(old, new, ClientCode({}), of_files=Differences())
    assert verdict.answer == "Not known: results.xml was not written with vLLM 0.33.0."
    assert verdict.status == 2


def test_empty_list_that_is_gone_is_the_cause_of_a_failure() -> None:
    code = "# tool_calls\nfor call in message['tool_calls']:\n    print(call)\n"
    reason = "KeyError: 'tool_calls'\nclient.py:2: KeyError"
    failed = CaseResult(state="failed", reason=reason)
    verdict = verdict_with({"a": PASSED}, {"a": failed}, (0, 1), code)
    [item] = verdict.differences.breaks
    assert item.place == "client.py:2"
    assert item.message == f"`tool_calls` is gone from the answers of POST {CHAT}"
    assert "The message has no `tool_calls`." in item.why
    assert [item.file for item in verdict.differences.consequences] == ["a"]
    assert verdict_with({"a": PASSED}, {"a": PASSED}, code=code).is_ready


def test_changes_that_a_failing_command_met_are_possible_causes() -> None:
    verdict = verdict_with({"a": PASSED}, {"a": FAILED}, (0, 1))
    assert [item.kind for item in verdict.differences.breaks] == ["test"]
    assert verdict.differences.changes == []
    assert any("`tool_calls`" in item.message for item in verdict.differences.causes)
    passing = verdict_with({"a": PASSED}, {"a": PASSED})
    assert passing.differences.causes == []
    assert passing.differences.changes != []


def test_client_whose_requests_all_fail_gives_no_answer() -> None:
    verdict = rehearsed("0.32", "0.33", "pass\n", Sent(CHAT, {"messages": 3}), Sent("/nothing"))
    assert verdict.status == 2
    assert verdict.answer.startswith("Not known: vLLM 0.32.0 rejects each request: 400 ")


def test_recorded_request_that_the_stand_in_rejects_is_not_known() -> None:
    bad = Sent(CHAT, {"messages": 3})
    old = run_of("0.32", [chat(), bad])
    real = [*run_of("0.32", [chat()]).exchanges, old.exchanges[1]]
    real[1] = replace(real[1], answer=real[0].answer)
    new = run_of("0.33", [chat(), bad])
    verdict = verdict_of(old, new, ClientCode({}), of_files=Differences(), recorded=real)
    assert verdict.answer == "Not known for 1 of 2 recorded requests."
    [item] = verdict.unknown.items
    assert "answers 200, and the stand-in of vLLM 0.32.0 rejects the request: 400" in item.message


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
def test_answer_to_a_downgrade_without_a_break_is_not_known(
    old: str, new: str, is_named: bool
) -> None:
    verdict = rehearsed(old, new, "", chat())
    assert (DOWNGRADE in verdict.answer) is is_named
    assert verdict.status == (2 if is_named else 0)
