"""The entry of the journal for each request of an export."""

import pytest

from config import ConfigError
from tests.workbench.judge.synthetic import journal_of, pair_of, tools_of
from workbench.judge.matching import match
from workbench.runs.tool_requests import Export, ToolRequest


def export_of(requests: list[ToolRequest]) -> Export:
    return Export(tool="tool", has_unix_times=True, requests=requests)


def test_requests_are_matched_by_request_or_response_id() -> None:
    pairs = [pair_of(number, float(number)) for number in range(4)]
    pairs[2].served.id = "drawn-by-the-server"
    pairs[2].served.response_id = "cmpl-request-2"
    pairs[2].tool.ids = ("unknown", "cmpl-request-2")
    matches = match("x", export_of(tools_of(pairs)[::-1]), journal_of(pairs))
    assert matches.method == "id"
    assert matches.pairs == pairs[::-1]


def test_requests_missing_from_the_export_or_the_journal_are_listed() -> None:
    pairs = [pair_of(number, float(number)) for number in range(6)]
    matches = match("x", export_of(tools_of(pairs)[1:5:2]), journal_of(pairs))
    assert [entry.id for entry in matches.not_reported] == ["request-2"]
    assert matches.outside == 3
    matches = match("x", export_of(tools_of(pairs)), journal_of(pairs)[:-1])
    assert [request.place for request in matches.not_served] == ["x.json: request 5"]


def test_request_id_that_the_journal_contains_twice_is_not_matched() -> None:
    pairs = [pair_of(number, float(number)) for number in range(3)]
    retried = pair_of(1, 9.0).served
    matches = match("x", export_of(tools_of(pairs)), [*journal_of(pairs), retried])
    assert [pair.served.id for pair in matches.pairs] == ["request-0", "request-2"]
    assert len(matches.not_served) == 1


def test_requests_are_matched_by_number_to_the_latest_journal_run() -> None:
    earlier = [pair_of(number, float(number)) for number in range(3)]
    later = [pair_of(number, 10.0 + number) for number in range(3)]
    for number, pair in enumerate(earlier):
        pair.served.id = f"bench-11-{number}"
    for number, pair in enumerate(later):
        pair.served.id = f"bench-22-{number}"
        pair.tool.ids = ()
        pair.tool.index = number
    journal = [*journal_of(earlier), *journal_of(later)]
    matches = match("x", export_of(tools_of(later)), journal)
    assert (matches.method, matches.pairs) == ("number", later)
    assert matches.outside == 3


def test_requests_without_ids_are_matched_by_distinct_replies() -> None:
    pairs = [pair_of(number, float(number)) for number in range(3)]
    for number, pair in enumerate(pairs):
        pair.tool.ids = ()
        pair.tool.text = f"reply {number}"
        pair.served.text = f"reply {number}"
    matches = match("x", export_of(tools_of(pairs)[::-1]), journal_of(pairs))
    assert (matches.method, matches.pairs) == ("text", pairs[::-1])


def test_requests_are_matched_by_order_only_if_the_counts_are_equal() -> None:
    pairs = [pair_of(number, float(number)) for number in range(3)]
    for pair in pairs:
        pair.tool.ids = ()
    matches = match("x", export_of(tools_of(pairs)[::-1]), journal_of(pairs))
    assert (matches.method, matches.pairs) == ("order", pairs[::-1])
    with pytest.raises(
        ConfigError,
        match="none of the request IDs are .*2 in the file, 3 in the journal.*; send X-Request",
    ):
        match("x", export_of(tools_of(pairs)[:2]), journal_of(pairs))


def test_journal_of_another_run_is_rejected() -> None:
    pairs = [pair_of(number, float(number)) for number in range(3)]
    others = [pair_of(number, float(number)) for number in range(7, 9)]
    with pytest.raises(
        ConfigError,
        match="none of the 3 requests .* has 2 other requests; the file and the journal belong to",
    ):
        match("x", export_of(tools_of(pairs)), journal_of(others))


def test_requests_with_unknown_ids_are_matched_by_the_reply_text() -> None:
    pairs = [pair_of(number, float(number)) for number in range(3)]
    for number, pair in enumerate(pairs):
        pair.tool.ids = (f"only-in-the-tool-{number}",)
        pair.tool.text = f"reply {number}"
        pair.served.text = f"reply {number}"
    matches = match("x", export_of(tools_of(pairs)[::-1]), journal_of(pairs))
    assert (matches.method, matches.pairs) == ("text", pairs[::-1])
    pairs[0].tool.text = "reply 1"
    with pytest.raises(ConfigError, match="different runs"):
        match("x", export_of(tools_of(pairs)), journal_of(pairs))
